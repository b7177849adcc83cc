#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "output.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "utf8.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

// Returns the option for a field: "--top-p" for "top_p".
std::string option_of(const char* field) {
  std::string option = std::string("--") + field;
  std::ranges::replace(option, '_', '-');
  return option;
}

// Reads "ID=VALUE" of `option`.
std::pair<TokenId, double> parse_bias(const std::string& option, const std::string& text) {
  const char* begin = text.c_str();
  char* end = nullptr;
  const std::int64_t id = std::strtoll(begin, &end, 10);
  const bool has_id = end != begin && *end == '=' && id >= 0 && id <= INT32_MAX;
  const char* value_begin = has_id ? end + 1 : begin;
  const double value = std::strtod(value_begin, &end);
  if (!has_id || end == value_begin || *end != '\0') {
    throw CLI::ValidationError(option, "want ID=VALUE, got \"" + text + "\"");
  }
  return {static_cast<TokenId>(id), value};
}

// Declares one option for a field, as its type asks for. The values must outlive the command.
class FieldOption {
 public:
  FieldOption(CLI::App& command, const char* field, std::string help)
      : command_(command), option_(option_of(field)), help_(std::move(help)) {}

  template <class Value>
  CLI::Option* add(Value& value) {
    return command_.add_option(option_, value, help_)->capture_default_str();
  }

  // Adds a flag that sets what is not the default.
  CLI::Option* add(bool& value) {
    if (!value) {
      return command_.add_flag(option_, value, help_);
    }
    const std::string off = option_ == "--deterministic" ? "--not-" : "--no-";
    return command_.add_flag_callback(off + option_.substr(2), [&value] { value = false; }, help_);
  }

  // Takes bytes as parse_bytes reads them, or auto.
  CLI::Option* add(std::int64_t& value) {
    const auto set = [option = option_, &value](const std::string& text) {
      if (text == "auto") {
        value = kAutoBudget;
        return;
      }
      const auto bytes = parse_bytes(text);
      if (!bytes.ok()) {
        throw CLI::ValidationError(option, bytes.error().message);
      }
      value = bytes.value();
    };
    return command_.add_option_function<std::string>(option_, set, help_);
  }

  // Takes a text; "none" names the empty one of --quantize.
  CLI::Option* add(std::string& value) {
    if (option_ != "--quantize") {
      CLI::Option* const option = command_.add_option(option_, value, help_);
      return value.empty() ? option : option->capture_default_str();
    }
    const auto set = [&value](const std::string& name) { value = name == "none" ? "" : name; };
    return command_.add_option_function<std::string>(option_, set, help_)->default_str("none");
  }

  // Takes the number of logprobs, which only JSON shows.
  CLI::Option* add(std::optional<std::int32_t>& value) {
    return command_.add_option(option_, value, help_ + " (json)");
  }

  CLI::Option* add(std::optional<std::uint64_t>& value) {
    return command_.add_option(option_, value, help_)->check(refuse_seed);
  }

  CLI::Option* add(std::vector<std::string>& values) {
    return command_.add_option(option_, values, help_ + "; may be repeated")
        ->allow_extra_args(false)
        ->check(refuse_no_utf8);
  }

  CLI::Option* add(std::vector<TokenId>& values) {
    return add_list(command_, option_, values, help_ + ", as 2,7");
  }

  CLI::Option* add(std::vector<std::pair<TokenId, double>>& values) {
    const auto set = [option = option_, &values](const std::vector<std::string>& entries) {
      values.clear();
      for (const std::string& entry : entries) {
        values.push_back(parse_bias(option, entry));
      }
    };
    return command_
        .add_option_function<std::vector<std::string>>(option_, set,
                                                       "ID=VALUE " + help_ + "; may be repeated")
        ->allow_extra_args(false);
  }

 private:
  CLI::App& command_;
  std::string option_;
  std::string help_;
};

// Returns whether from_chars reads all of `text` as a number, also as one too large for the type.
template <class Number>
bool is_number(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && !text.empty();
}

bool is_control(unsigned char c) { return c < ' '; }

// Says why the text is no integer. Returns "" if it is one.
std::string refuse_no_integer(const std::string& text) {
  return is_number<std::int64_t>(text) || is_number<std::uint64_t>(text)
             ? std::string()
             : "want a number as 8, got \"" + text + '"';
}

std::string refuse_no_real(const std::string& text) {
  return is_number<double>(text) ? std::string() : "want a number as 0.7, got \"" + text + '"';
}

// Adds --draft-model, --draft-tokens and --draft-width, which write LLMOptions::speculate.
void add_draft_options(CLI::App& command, LLMOptions& options) {
  auto draft = std::make_shared<json::object>(json::object{{"method", "draft"}});
  const auto set = [draft, &options](const char* key, json::value value) {
    (*draft)[key] = std::move(value);
    options.speculate = json::serialize(*draft);
  };
  CLI::Option* const model =
      command
          .add_option_function<std::string>(
              "--draft-model", [set](const std::string& path) { set("model", json::value(path)); },
              "smaller model with the same tokens, which guesses for this one")
          ->option_text("PATH")
          ->excludes(command.get_option("--speculate"))
          ->group("Engine");
  const auto add_count = [&](const char* name, const char* key, const char* help) {
    command
        .add_option_function<std::int32_t>(
            name, [set, key](std::int32_t count) { set(key, json::value(count)); }, help)
        ->needs(model)
        ->group("Engine");
  };
  add_count("--draft-tokens", "max_tokens", "tokens that it guesses at once (default 4)");
  add_count("--draft-width", "width", "tokens that it guesses side by side (default 1)");
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

CLI::Option* add_list(CLI::App& command, const std::string& option,
                      std::vector<std::int32_t>& values, const std::string& help) {
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

CLI::Option* add_choice(CLI::App& command, const std::string& option,
                        const std::vector<std::string>& names,
                        const std::function<void(std::size_t index)>& set, const char* help) {
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : "|") + name;
  }
  const auto choose = [=](const std::string& name) {
    const auto chosen = std::ranges::find(names, name);
    if (chosen == names.end()) {
      throw CLI::ValidationError(option, "want " + all + ", got \"" + name + "\"");
    }
    set(static_cast<std::size_t>(chosen - names.begin()));
  };
  return command.add_option_function<std::string>(option, choose, help)->option_text(all);
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
                  "Hugging Face folder, GGUF file, owner/name in the local Hugging Face cache, or "
                  "preset:NAME (random weights)")
      ->required();
}

CLI::Option* add_name(CLI::App& command, std::string& name, const char* help) {
  const auto refuse = [](const std::string& text) {
    const bool is_line = !text.empty() && std::ranges::none_of(text, &is_control);
    return is_line ? std::string() : "want one line of text, got \"" + preview(text) + '"';
  };
  return command.add_option("--name", name, help)
      ->option_text("NAME")
      ->check(refuse_no_utf8)
      ->check(refuse);
}

void add_engine_options(CLI::App& command, LLMOptions& options) {
  for (const LLMField& field : llm_fields()) {
    if (std::string_view(field.name) != "seed") {
      FieldOption option(command, field.name, field.help);
      std::visit([&](auto member) { option.add(options.*member)->group("Engine"); }, field.member);
    }
  }
  add_draft_options(command, options);
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

std::span<const SamplingField> settable_fields() {
  return sampling_fields().first(sampling_fields().size() - 2);
}

void add_sampling_options(CLI::App& command, SamplingParams& params) {
  for (const SamplingField& field : settable_fields()) {
    FieldOption option(command, field.name, field.help);
    std::visit([&](auto member) { option.add(params.*member)->group("Sampling"); }, field.member);
  }
}

void add_urgency_options(CLI::App& command, RequestOptions& request) {
  const std::string group = "Engine";
  const auto refuse_deadline = [](const std::string& text) {
    const double seconds = std::strtod(text.c_str(), nullptr);
    return seconds > 0 && std::isfinite(seconds)
               ? std::string()
               : "want a number of seconds above 0, got \"" + text + '"';
  };
  command
      .add_option("--deadline-seconds", request.deadline_seconds,
                  "seconds after which the request ends with an error")
      ->check(refuse_deadline)
      ->group(group);
  command.add_option("--priority", request.priority, "for --scheduler priority: higher goes first")
      ->group(group);
  command.add_option("--tenant", request.tenant, "for --scheduler fair: whose service it is")
      ->group(group);
}

void add_chat_options(CLI::App& command, ChatOptions& options) {
  const std::string group = "Conversation";
  command.add_option("--system", options.system, "system message")
      ->check(refuse_no_utf8)
      ->group(group);
  command
      .add_option("--document", options.document_files,
                  "text file that every question shares; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
}

void refuse_no_numbers(CLI::App& app) {
  for (CLI::Option* const option : app.get_options({})) {
    const std::string type = option->get_type_name();
    if (type == "INT" || type == "UINT") {
      option->check(&refuse_no_integer);
    } else if (type == "FLOAT") {
      option->check(&refuse_no_real);
    }
  }
  for (CLI::App* const command : app.get_subcommands({})) {
    refuse_no_numbers(*command);
  }
}

Status check_logprobs(const SamplingParams& params, Format format) {
  if (params.logprobs && format != Format::kJson) {
    return {ErrorCode::kInvalidArgument, "--logprobs shows only with --format json"};
  }
  return {};
}

}  // namespace quire::cli
