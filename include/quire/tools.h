// What the command line does besides: paths and JSON as people write them; doctor, inspect, bench.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {

// "0.1.0"
[[nodiscard]] QUIRE_API const char* version();

// A path with a leading "~" or "~/" made the user's home folder, as every call that takes a path
// does it. "~name" stays as it is.
[[nodiscard]] QUIRE_API std::string expand_home(std::string_view path);

// Returns `text` as a JSON string in its quotes, to be put into the JSON that calls take (messages,
// variables, metadata).
[[nodiscard]] QUIRE_API std::string json_string(std::string_view text);

// JSON object: version, cpu, cores, memory_bytes, isa {chosen, supported, self_test}, libraries,
// devices. self_test says "ok" of each instruction set, or which of its kernels is wrong (a second
// or so); `quire doctor` then ends with 1.
[[nodiscard]] QUIRE_API std::string doctor_json();

// JSON object on a model folder or GGUF file without loading weights: family, shape, parameters,
// dtype, tensors, encodings (of the quantised ones how many tensors are computed in which format,
// and how near), weight_bytes per dtype and quantize choice ("auto": of a file with neither given),
// kv_bytes_per_token, tokenizer, chat_template, unsupported (list of reasons why it would not load;
// empty when it would).
[[nodiscard]] QUIRE_API Result<std::string> inspect_json(const std::string& model);

struct BenchOptions {
  std::vector<std::int32_t> prompt = {128};  // prompt lengths of `prefill` and `ttft`
  std::vector<std::int32_t> depth = {0};     // tokens already in the cache; > 0: restore, fork,
                                             // compose too
  std::int32_t generate = 64;                // decode steps
  std::vector<std::int32_t> batch = {};      // requests at a time of `batched_decode`: behind
  std::int32_t shared_prefix = 0;            // so many tokens that they share or, if 0, behind
                                             // `depth` tokens of their own
  std::int32_t repeat = 1;
  LLMOptions llm = {};  // device, dtype, quantize, kv_dtype, threads, ...

  [[nodiscard]] QUIRE_API Status validate() const;
};

// One measurement; field names are those of the JSON records.
struct BenchRecord {
  std::string metric;  // prefill | decode | batched_decode | ttft | restore | fork | compose
  std::int64_t prompt_tokens = 0;
  std::int64_t depth_tokens = 0;  // of each request
  std::int64_t batch = 1;
  std::int64_t shared_tokens = 0;
  std::string weights;  // float32 | bfloat16 | q8g32 | q4g32 | q4m32 | float16
  std::string kv;
  std::string device;
  std::int64_t threads = 0;
  double seconds = 0;
  double tokens_per_second = 0;  // 0: does not apply
  double bytes_per_second = 0;
  double floor_seconds = 0;     // at the read bandwidth and compute peak measured in the same run;
                                // 0 of fork and compose, which move no KV and so have none
  double of_floor = 0;          // floor_seconds / seconds
  double linear_seconds = 0;    // that the matrix kernels alone need for the same work, measured
  double overhead_seconds = 0;  // per step outside kernels; on a GPU all that the host does
};

// Loads `model` and measures. `progress` gets a line of text before each measurement.
[[nodiscard]] QUIRE_API Result<std::vector<BenchRecord>> run_bench(
    const std::string& model, const BenchOptions& options,
    const std::function<void(const std::string&)>& progress);

}  // namespace quire
