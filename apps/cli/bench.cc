// quire bench: speed beside what this machine could do at most, measured in the same run.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "generate.h"
#include "hub.h"
#include "options.h"
#include "output.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct BenchCommand {
  std::string model;
  bool verbose = false;
  Format format = Format::kText;
  std::string accuracy_text;  // file
  BenchOptions bench;
};

json::object to_json(const BenchRecord& record) {
  json::object object;
  object["metric"] = record.metric;
  object["prompt_tokens"] = record.prompt_tokens;
  object["depth_tokens"] = record.depth_tokens;
  object["batch"] = record.batch;
  object["shared_tokens"] = record.shared_tokens;
  object["weights"] = record.weights;
  object["kv"] = record.kv;
  object["device"] = record.device;
  object["threads"] = record.threads;
  object["seconds"] = record.seconds;
  if (record.tokens_per_second > 0) {
    object["tokens_per_second"] = record.tokens_per_second;
  }
  object["bytes_per_second"] = record.bytes_per_second;
  object["floor_seconds"] = record.floor_seconds;
  object["of_floor"] = record.of_floor;
  if (record.linear_seconds > 0) {
    object["linear_seconds"] = record.linear_seconds;
  }
  if (record.overhead_seconds > 0) {
    object["overhead_seconds"] = record.overhead_seconds;
  }
  return object;
}

std::string table(const std::vector<BenchRecord>& records) {
  std::string text =
      "metric            prompt   depth  batch  shared  weights   kv              ms     tok/s"
      "    GB/s  of floor\n";
  for (const BenchRecord& record : records) {
    char of_floor[16] = "-";  // there is none
    if (record.floor_seconds > 0) {
      std::snprintf(of_floor, sizeof of_floor, "%.3f", record.of_floor);
    }
    char line[200];
    std::snprintf(
        line, sizeof line, "%-16s %7lld %7lld %6lld %7lld  %-9s %-9s %8.2f %9.1f %7.2f  %8s\n",
        record.metric.c_str(), static_cast<long long>(record.prompt_tokens),
        static_cast<long long>(record.depth_tokens), static_cast<long long>(record.batch),
        static_cast<long long>(record.shared_tokens), record.weights.c_str(), record.kv.c_str(),
        record.seconds * 1e3, record.tokens_per_second, record.bytes_per_second / 1e9, of_floor);
    text += line;
  }
  return text;
}

json::object to_json(const LayerErrors& errors) {
  return {{"mean", errors.mean},
          {"max", errors.max},
          {"layers", json::array(errors.layers.begin(), errors.layers.end())}};
}

json::object to_json(const KVAccuracy& accuracy) {
  return {{"metric", "kv_accuracy"},
          {"kv", accuracy.kv_dtype},
          {"reference", accuracy.reference},
          {"num_tokens", accuracy.num_tokens},
          {"bits_per_value", accuracy.bits_per_value},
          {"ratio_vs_bf16", accuracy.ratio_vs_bf16},
          {"ratio_vs_fp32", accuracy.ratio_vs_fp32},
          {"key_error", to_json(accuracy.key_error)},
          {"value_error", to_json(accuracy.value_error)},
          {"attention_kl", accuracy.attention_kl},
          {"logit_kl_mean", accuracy.logit_kl_mean},
          {"logit_kl_p99", accuracy.logit_kl_p99},
          {"same_best", accuracy.same_best},
          {"perplexity", accuracy.perplexity},
          {"perplexity_delta", accuracy.perplexity_delta}};
}

std::string table(const std::vector<KVAccuracy>& all) {
  std::string text =
      "kv         bits  vs bf16  vs fp32  key error  value error  attention KL  logit KL    p99    "
      "   same "
      "best"
      "  perplexity    delta\n";
  for (const KVAccuracy& one : all) {
    char line[200];
    std::snprintf(
        line, sizeof line,
        "%-9s %5.2f %8.2f %8.2f  %9.2e  %11.2e  %12.2e  %8.2e  %8.2e  %9.4f  %10.3f  %+7.4f\n",
        one.kv_dtype.c_str(), one.bits_per_value, one.ratio_vs_bf16, one.ratio_vs_fp32,
        one.key_error.mean, one.value_error.mean, one.attention_kl, one.logit_kl_mean,
        one.logit_kl_p99, one.same_best, one.perplexity, one.perplexity_delta);
    text += line;
  }
  return text;
}

// Measures every format that kv_dtype lists; "auto" stands for all that are not plain.
Result<std::vector<KVAccuracy>> measure_accuracy(const BenchCommand& command) {
  QUIRE_TRY(const std::string text, read_strict_text(command.accuracy_text));
  QUIRE_TRY(const std::string model, find_model(command.model));
  LLMOptions options = command.bench.llm;
  options.kv_dtype = "auto";
  QUIRE_TRY(LLM llm, LLM::open(model, options));
  std::vector<KVAccuracy> all;
  const std::string& asked = command.bench.llm.kv_dtype;
  std::istringstream formats(asked == "auto" ? "int8,fp8,int4" : asked);
  for (std::string format; std::getline(formats, format, ',');) {
    QUIRE_TRY(KVAccuracy accuracy, llm.kv_accuracy(text, format));
    all.push_back(std::move(accuracy));
  }
  return all;
}

// Returns the exit code.
template <class Records>
int print_records(const Records& records, Format format) {
  if (format == Format::kText) {
    const Status done = print(table(records.value()));
    return done.ok() ? kExitOk : fail(done.error());
  }
  json::array list;
  for (const auto& record : records.value()) {
    list.push_back(to_json(record));
  }
  const Status done = print_json(std::move(list));
  return done.ok() ? kExitOk : fail(done.error());
}

int bench(const BenchCommand& command) {
  if (!command.accuracy_text.empty()) {
    const auto accuracies = measure_accuracy(command);
    return accuracies.ok() ? print_records(accuracies, command.format)
                           : fail_options(accuracies.error());
  }
  if (const Status valid = command.bench.validate(); !valid.ok()) {
    return fail_options(valid.error());
  }
  std::function<void(const std::string&)> progress;
  if (command.verbose || isatty(STDERR_FILENO) == 1) {
    progress = [](const std::string& line) { note(line); };
  } else {
    progress = [](const std::string&) {};
  }
  const auto model = find_model(command.model);
  const auto records = model.ok() ? run_bench(*model, command.bench, progress) : model.error();
  return records.ok() ? print_records(records, command.format) : fail(records.error());
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure prefill, decode and reuse against the machine's limits");
  auto options = std::make_shared<BenchCommand>();
  BenchOptions& bench_options = options->bench;
  add_model(*command, options->model);
  add_list(*command, "--prompt", bench_options.prompt, "prompt lengths, as 32,128,512");
  add_list(*command, "--depth", bench_options.depth,
           "tokens already in the cache, in whole blocks");
  command->add_option("--generate", bench_options.generate, "tokens to decode");
  add_list(*command, "--batch", bench_options.batch, "requests that decode at a time");
  command->add_option("--shared-prefix", bench_options.shared_prefix,
                      "tokens that they share, in whole blocks; 0: each has --depth of its own");
  command->add_option("--repeat", bench_options.repeat, "runs of each measurement");
  command->add_option("--kv-accuracy", options->accuracy_text,
                      "text file: measure instead how exact KV is in each format that --kv-dtype "
                      "lists, as int8,bfloat16");
  command->add_flag("--verbose", options->verbose, "name each measurement on stderr");
  add_format(*command, options->format);
  add_engine_options(*command, bench_options.llm);
  command->get_option("--store")->needs("--cache-weights");
  command->callback([options, &action] { action = [options] { return bench(*options); }; });
}

}  // namespace quire::cli
