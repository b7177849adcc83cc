// Tools of the command line, for programs: version, and paths and JSON as people write them. The
// functions behind `quire doctor`, `quire inspect` and `quire bench` are here, too.
//
// Threads: every function here may be called from any thread. None needs an open LLM.
// Memory: where the machine refuses it, functions that return a Result return kOutOfBlocks, and
// functions that return a plain string throw std::bad_alloc.
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

// Returns the version of the library that runs: "0.1.0". Static memory.
[[nodiscard]] QUIRE_API const char* version();

// Returns the path with the user's home folder for a leading "~" or "~/". Every call that takes a
// path does this by itself. "~name" stays as it is.
[[nodiscard]] QUIRE_API std::string expand_home(std::string_view path);

// Returns `text` as a JSON string in its quotes. Callers put it into the JSON that calls take:
// messages, variables, metadata. O(text).
[[nodiscard]] QUIRE_API std::string json_string(std::string_view text);

// Returns a JSON object on this machine:
// * version, compiler, system, cpu, cores, memory_bytes, libraries.
// * isa {chosen, supported, self_test}: the instruction sets. self_test says for each "ok", or
//   which of its kernels is wrong; `quire doctor` then ends with 1.
// * devices: for "cpu" and "cuda" the name, or why no GPU can be used.
// Blocks while it tests the kernels of every supported instruction set.
[[nodiscard]] QUIRE_API Result<std::string> doctor_json();

// Returns a JSON object on a model folder, a GGUF file or a preset. Reads no weights.
// * model, family, shape, parameters, dtype, remarks. A model whose configuration is not supported
//   has the first one alone, and neither weight_bytes nor kv_bytes_per_token.
// * tensors, file_bytes, encodings: how many tensors have which encoding. For quantised ones also
//   how many are computed in which format, and how near that is. Files alone have these.
// * weight_bytes per dtype and quantize choice; "auto" is a model opened with neither.
// * kv_bytes_per_token per type of KV.
// * tokenizer, chat_template, chat_template_error. Files alone have these.
// * unsupported: a list of reasons why the model would not load. Empty when it would.
// Errors: kIo, kInvalidArgument or kCorrupt for a path that is no model. kUnsupported for files of
// weights that cannot be read.
[[nodiscard]] QUIRE_API Result<std::string> inspect_json(const std::string& model);

// Options of run_bench. Plain data.
struct BenchOptions {
  // Tokens of a prompt, for `prefill` and `ttft`; at least 1. Each length is measured.
  std::vector<std::int32_t> prompt = {128};
  // Tokens that are in the cache already, 0 or more; whole blocks of them count. Each depth is
  // measured. A depth of a block or more also measures restore, fork and compose; a model with a
  // sliding window has fork alone.
  std::vector<std::int32_t> depth = {0};
  // Decode steps of `decode` and `batched_decode`, at least 1.
  std::int32_t generate = 64;
  // Requests at a time, for `batched_decode`; at least 1. Each number is measured.
  std::vector<std::int32_t> batch = {};
  // Tokens that the requests of `batched_decode` share. 0: each has `depth` tokens of its own.
  std::int32_t shared_prefix = 0;
  // Runs of each measurement, at least 1.
  std::int32_t repeat = 1;
  // Options of the LLM that is measured: device, dtype, quantize, kv_dtype, threads, and so on.
  LLMOptions llm = {};

  // Checks the options by themselves, `llm` included.
  // Errors: kInvalidArgument names the option, its value and the lowest one that is allowed.
  [[nodiscard]] QUIRE_API Status validate() const;
};

// One measurement. Its fields have the names of the JSON records.
struct BenchRecord {
  // "prefill", "decode", "batched_decode", "ttft", "restore", "fork" or "compose".
  std::string metric;
  // New tokens of the prompt. 0 unless the metric is "prefill" or "ttft".
  std::int64_t prompt_tokens = 0;
  // Cached tokens of each request. Shared tokens do not count.
  std::int64_t depth_tokens = 0;
  // Requests at a time.
  std::int64_t batch = 1;
  // Cached tokens that all requests share.
  std::int64_t shared_tokens = 0;
  // Format of the weights: "float32", "bfloat16", "float16", "q8g32", "q4g32" or "q4m32".
  std::string weights;
  // Type of KV.
  std::string kv;
  // LLMOptions::device.
  std::string device;
  // Threads that compute.
  std::int64_t threads = 0;
  // Median of the runs. "decode" takes seconds of one token, "batched_decode" of one step.
  double seconds = 0;
  // 0: does not apply.
  double tokens_per_second = 0;
  double bytes_per_second = 0;
  // Seconds that the work takes at the read bandwidth and compute peak that the run has measured. 0
  // for fork and compose, which move no KV.
  double floor_seconds = 0;
  // floor_seconds / seconds.
  double of_floor = 0;
  // Measured seconds that the matrix kernels alone need for this work. 0 on a GPU.
  double linear_seconds = 0;
  // Seconds of one step of "batched_decode" outside of kernels. On a GPU: all that the host does.
  double overhead_seconds = 0;
};

// Loads `model`, measures, and returns the records. Blocks until the last measurement.
// Calls `progress`, if there is one, in the calling thread, with a line of text before loading and
// before each measurement.
// Errors: those of `options.validate()`, LLM::open and generating. kOverflow where the longest
// measurement does not fit into the model's context.
[[nodiscard]] QUIRE_API Result<std::vector<BenchRecord>> run_bench(
    const std::string& model, const BenchOptions& options,
    const std::function<void(const std::string&)>& progress);

}  // namespace quire
