#include "options.h"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/llm.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::cli {
namespace {

// "ID=VALUE" of --logit-bias.
std::pair<TokenId, double> parse_bias(const std::string& text) {
  const char* begin = text.c_str();
  char* end = nullptr;
  const std::int64_t id = std::strtoll(begin, &end, 10);
  const bool has_id = end != begin && *end == '=' && id >= 0 && id <= INT32_MAX;
  const char* value_begin = has_id ? end + 1 : begin;
  const double value = std::strtod(value_begin, &end);
  if (!has_id || end == value_begin || *end != '\0') {
    throw CLI::ValidationError("--logit-bias", "want ID=VALUE, got \"" + text + "\"");
  }
  return {static_cast<TokenId>(id), value};
}

}  // namespace

std::optional<std::vector<std::int32_t>> parse_list(const std::string& text) {
  std::vector<std::int32_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    const auto [stop, error] = std::from_chars(at, end, numbers.emplace_back());
    if (error != std::errc() || numbers.back() < 0) {
      return std::nullopt;
    }
    if (stop == end) {
      return numbers;
    }
    if (*stop != ',') {
      return std::nullopt;
    }
    at = stop + 1;
  }
}

CLI::Option* add_list(CLI::App& command, const char* option, std::vector<std::int32_t>& values,
                      const char* help) {
  const auto set = [option, &values](const std::vector<std::string>& texts) {
    values.clear();
    for (const std::string& text : texts) {
      const auto numbers = parse_list(text);
      if (!numbers) {
        throw CLI::ValidationError(option, "want whole numbers as 1,15,7, got \"" + text + '"');
      }
      values.insert(values.end(), numbers->begin(), numbers->end());
    }
  };
  return command.add_option_function<std::vector<std::string>>(option, set, help)
      ->option_text("INT,...")
      ->allow_extra_args(false);
}

void add_format(CLI::App& command, Format& format) {
  command
      .add_option_function<std::string>(
          "--format",
          [&format](const std::string& name) {
            if (name != "text" && name != "json") {
              throw CLI::ValidationError("--format", "want text or json, got \"" + name + "\"");
            }
            format = name == "json" ? Format::kJson : Format::kText;
          },
          "text (default) or json")
      ->option_text("text|json");
}

void add_model(CLI::App& command, std::string& model) {
  command
      .add_option("MODEL", model,
                  "Hugging Face folder, .gguf file, or preset:NAME (random weights)")
      ->required();
}

void add_engine_options(CLI::App& command, LLMOptions& options) {
  const std::string group = "Engine";
  command.add_option("--device", options.device, "cpu, cuda or cuda:N")->group(group);
  command
      .add_flag("!--not-deterministic", options.deterministic,
                "on a GPU: faster; the last bits then depend on what is computed together")
      ->group(group);
  command
      .add_option("--dtype", options.dtype,
                  "compute type: auto, float32, bfloat16, float16 (on a GPU)")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--quantize",
          [&options](const std::string& name) { options.quantize = name == "none" ? "" : name; },
          "weights, while loading: none, q8g32, q4g32")
      ->group(group);
  command
      .add_option("--kv-dtype", options.kv_dtype,
                  "auto (= dtype), float32, bfloat16, float16 (on a GPU)")
      ->group(group);
  command.add_option("--block-tokens", options.block_tokens, "tokens of a KV block, 1..256")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--kv-budget",
          [&options](const std::string& text) {
            if (text == "auto") {
              options.kv_budget_bytes = kAutoBudget;
              return;
            }
            auto bytes = parse_bytes(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError("--kv-budget", bytes.error().message);
            }
            options.kv_budget_bytes = bytes.value();
          },
          "memory of KV blocks, such as 512MiB, or auto (default 1GiB)")
      ->group(group);
  command.add_option("--max-batch-tokens", options.max_batch_tokens, "rows of one step")
      ->group(group);
  command.add_option("--threads", options.threads, "0 = one for each core")->group(group);
  command.add_option("--store", options.store, "directory that outlives the process")->group(group);
  command
      .add_flag("--cache-weights", options.cache_weights,
                "keep packed weights in the store: later starts map them")
      ->group(group);
  command
      .add_flag_callback(
          "--no-prefix-cache", [&options] { options.prefix_cache = false; },
          "compute every prompt from its first token")
      ->group(group);
}

CLI::Option* add_salt(CLI::App& command, std::string& salt) {
  return command
      .add_option("--salt", salt, "tenant, up to 1024 bytes: KV of another one is never seen")
      ->group("Engine");
}

std::string refuse_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const bool fits = std::from_chars(text.data(), end, seed) == std::from_chars_result{end, {}};
  return fits ? std::string() : "want a number from 0 to 2^64 - 1, got \"" + text + '"';
}

void add_sampling_options(CLI::App& command, SamplingParams& params) {
  const std::string group = "Sampling";
  const auto add = [&](const char* name, auto& field, const char* text) {
    command.add_option(name, field, text)->group(group);
  };
  add("--max-tokens", params.max_tokens, "most tokens to generate (default 256)");
  add("--min-tokens", params.min_tokens, "tokens before an end is allowed, by stop texts too");
  add("--temperature", params.temperature, "0 is greedy (default 1)");
  add("--top-p", params.top_p, "share of probability kept, (0, 1]");
  add("--top-k", params.top_k, "tokens kept, 0 = all");
  add("--min-p", params.min_p, "kept: at least so much of the likeliest, [0, 1]");
  add("--repetition-penalty", params.repetition_penalty, "of tokens in prompt and output, > 0");
  add("--presence-penalty", params.presence_penalty, "of tokens in the output");
  add("--frequency-penalty", params.frequency_penalty, "of tokens in the output, per occurrence");
  command.add_option("--seed", params.seed, "makes the answer repeatable")
      ->check(refuse_seed)
      ->group(group);
  add("--logprobs", params.logprobs, "report the K likeliest tokens of each step (json)");
  command.add_option("--stop", params.stop, "text that ends the output; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  add_list(command, "--stop-token-ids", params.stop_token_ids, "ids that end it, as 2,7")
      ->group(group);
  command.add_flag("--ignore-eos", params.ignore_eos, "go on after the end token")->group(group);
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias",
          [&params](const std::vector<std::string>& entries) {
            for (const std::string& entry : entries) {
              params.logit_bias.push_back(parse_bias(entry));
            }
          },
          "ID=VALUE added to a logit; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
}

void add_chat_options(CLI::App& command, ChatOptions& options) {
  const std::string group = "Conversation";
  command.add_option("--system", options.system, "system message")->group(group);
  command
      .add_option("--document", options.document_files,
                  "text file that every question shares; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
}

void refuse_empty_numbers(CLI::App& app) {
  for (CLI::Option* const option : app.get_options({})) {
    const std::string type = option->get_type_name();
    if (type == "INT" || type == "UINT" || type == "FLOAT") {
      option->check([](const std::string& text) {
        return text.empty() ? std::string("want a number, got \"\"") : std::string();
      });
    }
  }
  for (CLI::App* const command : app.get_subcommands({})) {
    refuse_empty_numbers(*command);
  }
}

std::string help_of(const CLI::App& app) {
  const CLI::App* chosen = &app;
  std::string before;
  while (!chosen->get_subcommands().empty()) {
    before += (before.empty() ? "" : " ") + chosen->get_name();
    chosen = chosen->get_subcommands().front();
  }
  return chosen->help(before);
}

std::string usage_message(const CLI::ParseError& error, const std::string& first) {
  std::string message = error.what();
  if (first.empty()) {
    return "no command";
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
      message.find("subcommand") != std::string::npos) {
    const char* kind = first.starts_with('-') ? "option" : "command";
    return std::string("unknown ") + kind + " \"" + first + "\"";
  }
  if (message.size() > 1 && std::islower(static_cast<unsigned char>(message[1])) != 0) {
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
  }
  return message;
}

}  // namespace quire::cli
