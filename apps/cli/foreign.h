// Words of other tools, and what there is for them here.
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
// what is to say about it, "" where the word is of none of them. `_` counts as `-`. `names` are the
// options that the command has.
[[nodiscard]] std::string_view foreign_option(std::string word,
                                              const std::vector<std::string>& names);
// Returns what is to say about a command of theirs, or about a model in its place.
[[nodiscard]] std::string foreign_command(const std::string& word);
// Returns the name that a command of the same meaning mostly has here: "rm" for "delete". "" for
// other words.
[[nodiscard]] std::string_view same_command(std::string_view word);

}  // namespace quire::cli
