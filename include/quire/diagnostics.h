// The functions behind `quire doctor`, `quire inspect` and `quire bench`: about a machine, a model,
// and how fast the one computes the other.
//
// Threads: every function here may be called from any thread. None needs an open LLM.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/export.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire {

// Pairs of a name and a number, in a fixed order.
using NamedNumbers = std::vector<std::pair<std::string, std::int64_t>>;

// Describes this machine. Plain data that the caller owns.
struct MachineInfo {
  // An instruction set that the processor has.
  struct InstructionSet {
    std::string name;
    // "ok", or which of its kernels computes wrong results.
    std::string self_test;
  };
  // Version of the library, and the compiler that built it.
  std::string version, compiler;
  // Operating system and processor.
  std::string system, cpu;
  // Threads that run at a time, and bytes of memory.
  std::int64_t cores = 0, memory_bytes = 0;
  // Instruction set that kernels use, and all that the processor has.
  std::string chosen_isa;
  std::vector<InstructionSet> isas;
  // Version of Boost that the library was built with.
  std::string boost_version;
  // Name of the GPU that the device "cuda" is, or why no GPU can be used.
  std::string cuda;
};

// Returns what this machine is. Blocks while it tests the kernels of every supported instruction
// set.
// Errors: kOutOfBlocks.
[[nodiscard]] QUIRE_API Result<MachineInfo> doctor();
// Returns a JSON object, which the caller owns:
// * version, compiler, system, cpu, cores, memory_bytes, libraries.
// * isa {chosen, supported, self_test}: the instruction sets. self_test says for each "ok", or
//   which of its kernels is wrong; `quire doctor` then ends with 1.
// * devices: for "cpu" and "cuda" the name, or why no GPU can be used.
// Errors: kOutOfBlocks.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const MachineInfo& machine);
// Returns to_json() of doctor(), at its cost and with its errors.
[[nodiscard]] QUIRE_API Result<std::string> doctor_json();

// Describes a model folder, a GGUF file or a preset. Plain data that the caller owns.
struct ModelInfo {
  // The shape of the network.
  struct Shape {
    std::int32_t layers = 0, hidden_size = 0, intermediate_size = 0;
    std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
    std::int32_t vocab_size = 0, max_positions = 0;
    bool tied_embeddings = false;
    // In a layer that has some, and those of them that a token is computed with; 0: none.
    std::int32_t experts = 0, experts_per_token = 0;
  };
  // Layers that share blocks of KV, or states.
  struct Group {
    // "full" or "window" for layers with KV, "state" for layers that carry one.
    std::string kind;
    // Numbers of the layers.
    std::vector<std::int32_t> layers;
    // Bytes of a token's KV in all these layers, as "auto" stores it; bytes of one state.
    std::int64_t bytes = 0;
    // Tokens that a layer with a window sees; 0 for others.
    std::int32_t window = 0;
  };
  // A configuration that is supported.
  struct Config {
    // Name of the architecture: "llama", "qwen3", and so on.
    std::string family;
    Shape shape;
    // Number of weights.
    std::int64_t parameters = 0;
    // Those that a token is computed with: of experts only the chosen ones.
    std::int64_t active_parameters = 0;
    // Type of the checkpoint's weights.
    std::string dtype;
    // Bytes of the weights per dtype and quantize choice; "auto" is a model opened with neither.
    NamedNumbers weight_bytes;
    // Bytes of a token's KV per type of KV.
    NamedNumbers kv_bytes_per_token;
    // Layers by what they hold of tokens, in the order of their first layers.
    std::vector<Group> groups;
    // Says what of the configuration loading leaves out.
    std::vector<std::string> remarks;
  };
  // Tensors of one encoding.
  struct Encoding {
    std::string name;
    std::int64_t tensors = 0;
    // For quantised tensors: how many are computed in which format, and how near that is.
    NamedNumbers computed_as;
  };
  // The tokenizer of the files.
  struct Text {
    std::int32_t vocab_size = 0;
    std::string bos_token, eos_token;
  };
  // Files on disk.
  struct Files {
    std::int64_t tensors = 0, file_bytes = 0;
    std::vector<Encoding> encodings;
    // Not given: there is none, or it cannot be read.
    std::optional<Text> tokenizer;
    bool has_chat_template = false;
    // Cause, for people, where there is a tokenizer and no chat template can be used.
    std::string chat_template_error;
  };
  // The path or preset as given.
  std::string model;
  // Not given: the configuration is not supported.
  std::optional<Config> config;
  // Not given: a preset.
  std::optional<Files> files;
  // Reasons why the model would not load. Empty when it would.
  std::vector<std::string> unsupported;
};

// Returns what a model is. Reads no weights.
// Errors: kIo, kInvalidArgument or kCorrupt for a path that is no model. kUnsupported for files of
// weights that cannot be read. kOutOfBlocks.
[[nodiscard]] QUIRE_API Result<ModelInfo> inspect(const std::string& model);
// Returns a JSON object, which the caller owns:
// * model, family, shape, parameters, dtype, remarks. A model whose configuration is not supported
//   has the first one alone, and neither weight_bytes nor kv_bytes_per_token.
// * tensors, file_bytes, encodings: how many tensors have which encoding. For quantised ones also
//   how many are computed in which format, and how near that is. Files alone have these.
// * weight_bytes per dtype and quantize choice; "auto" is a model opened with neither.
// * kv_bytes_per_token per type of KV.
// * groups: layers by what they hold of tokens: kind (full, window, state), layers, bytes_per_token
// or
//   bytes of a state, window.
// * tokenizer, chat_template, chat_template_error. Files alone have these.
// * unsupported: a list of reasons why the model would not load. Empty when it would.
// Errors: kOutOfBlocks.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const ModelInfo& model);
// Returns to_json() of inspect(), with its errors.
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
  // Timed runs of each measurement, at least 1. One more before them is not timed.
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
  // Format of the weights: "float32", "bfloat16", "float16", "q8g32", "q4g32",
  // "q4m32" or "fp8".
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
  // Least seconds that the work takes. They follow from the read bandwidth and from the peak of
  // each kind of product that the kernels run, measured in this run. "restore" counts the way of
  // its bytes instead: a read of the file, or the link of a GPU where that is slower. 0 for fork
  // and compose, which move no KV.
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
