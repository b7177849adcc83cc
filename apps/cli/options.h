// Options that several commands share, each declared once: of the engine, of sampling, of a
// conversation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire::cli {

enum class Format : std::uint8_t { kText, kJson };

// Adds --format text|json.
void add_format(CLI::App& command, Format& format);

// Adds the positional MODEL.
void add_model(CLI::App& command, std::string& model);

// Adds --name: one line that names what the command adds.
CLI::Option* add_name(CLI::App& command, std::string& name, const char* help);

// Parses "0,16,40": whole numbers, 0 or more, all of `text`. nullopt for anything else.
[[nodiscard]] std::optional<std::vector<std::int32_t>> parse_list(const std::string& text);

// Adds an option whose value is such a list; it may be repeated. (CLI11's own lists leave empty
// elements out.)
CLI::Option* add_list(CLI::App& command, const std::string& option,
                      std::vector<std::int32_t>& values, const std::string& help);

// Adds an option whose value is one of `names`; `set` gets its index.
CLI::Option* add_choice(CLI::App& command, const std::string& option,
                        const std::vector<std::string>& names,
                        const std::function<void(std::size_t index)>& set, const char* help);

// Adds an option whose value is one of the names that `name_of` gives `all`.
template <class Enum>
CLI::Option* add_named(CLI::App& command, const char* option, const char* (*name_of)(Enum),
                       std::initializer_list<Enum> all, const std::function<void(Enum)>& set,
                       const char* help) {
  std::vector<std::string> names;
  for (const Enum value : all) {
    names.emplace_back(name_of(value));
  }
  return add_choice(
      command, option, names,
      [set, values = std::vector<Enum>(all)](std::size_t index) { set(values[index]); }, help);
}

// Adds one option for each of llm_fields() but `seed`: --seed belongs to the request.
void add_engine_options(CLI::App& command, LLMOptions& options);

// Adds --salt: it names the tenant whose chunks, items and cached prefixes a command sees.
CLI::Option* add_salt(CLI::App& command, std::string& salt);

// Returns why `text` is no seed, or "". CLI11 would cut a number that does not fit.
[[nodiscard]] std::string refuse_seed(const std::string& text);

// Returns sampling_fields() without the last two. `n`: the command line shows one output.
// `speculate`: it belongs to the engine here.
[[nodiscard]] std::span<const SamplingField> settable_fields();
// Adds one option for each of settable_fields().
void add_sampling_options(CLI::App& command, SamplingParams& params);

// Adds --deadline-seconds, --priority and --tenant: how pressing a request is.
void add_urgency_options(CLI::App& command, RequestOptions& request);

// Makes the number options of `app` and its commands refuse other text, in plain words. CLI11 takes
// an empty text for 0, but a variable that a shell did not set must not become token 0. Call it
// after all options are added.
void refuse_no_numbers(CLI::App& app);

// Refuses log probabilities in a format other than JSON, which alone shows them.
[[nodiscard]] Status check_logprobs(const SamplingParams& params, Format format);

// The beginning of a conversation.
struct ChatOptions {
  std::string system;
  std::vector<std::string> document_files;
};
void add_chat_options(CLI::App& command, ChatOptions& options);

}  // namespace quire::cli
