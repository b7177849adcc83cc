// Words of other tools, and Quire's words for them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

inline constexpr std::string_view kModelAlone = "the model stands by itself";
inline constexpr std::string_view kPromptAlone = "the prompt stands by itself, behind the model";
inline constexpr std::string_view kAnswers = "quire run MODEL PROMPT answers one prompt";
inline constexpr std::string_view kTalks = "quire chat MODEL talks";

// Returns Quire's option for an option of llama.cpp, vLLM or Ollama ("--max-tokens" for "-n"), else
// a remark on it. Returns "" for any other word. `_` counts as `-`. `names` are the options that
// the command has.
[[nodiscard]] std::string_view foreign_option(std::string word,
                                              const std::vector<std::string>& names);
// Returns a remark on a command of those tools, or on a model in its place.
[[nodiscard]] std::string foreign_command(const std::string& word);
// Returns the usual name here for a command of that meaning: "rm" for "delete". "" for other words.
[[nodiscard]] std::string_view same_command(std::string_view word);

}  // namespace quire::cli
