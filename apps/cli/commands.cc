#include "commands.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::cli {
namespace {

constexpr std::string_view kNameOption = "name=";
constexpr std::string_view kNameUsage = "[name=NAME]";

// The first word of `text`, which is cut off it; "" at the end.
std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
  text.remove_prefix(word.size());
  return word;
}

bool is_flag(std::string_view word) { return word.starts_with("--"); }

// What a usage allows.
struct Shape {
  std::size_t required = 0, allowed = 0;
  bool unlimited = false;
  bool text = false, text_required = false;
};

Shape shape_of(std::string_view usage) {
  Shape shape;
  for (std::string_view word = take_word(usage); !word.empty(); word = take_word(usage)) {
    const bool optional = word.starts_with('[');
    if (word.starts_with("[--") || word.starts_with("[name=")) {
      continue;
    }
    if (word.find("TEXT") != std::string_view::npos) {
      shape.text = true;
      shape.text_required = !optional;
      continue;
    }
    ++shape.allowed;
    shape.required += optional ? 0 : 1;
    shape.unlimited |= word.find("...") != std::string_view::npos;
  }
  return shape;
}

// Whether `word` is one of the options of the usage; notes it then.
bool take_option(std::string_view usage, std::string_view word, Arguments& arguments) {
  if (is_flag(word) && usage.find("[" + std::string(word) + "]") != usage.npos) {
    arguments.flags.emplace(word);
    return true;
  }
  if (word.starts_with(kNameOption) && usage.find(kNameUsage) != usage.npos) {
    arguments.name = word.substr(kNameOption.size());
    return true;
  }
  return false;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

Result<Arguments> parse_arguments(const Command& command, std::string_view rest) {
  const Shape shape = shape_of(command.usage);
  Arguments arguments;
  bool nameless = false;  // "name=" alone, such as of a variable that is not set, is no text
  while (true) {
    std::string_view behind = rest;
    const std::string_view word = take_word(behind);
    if (word.empty()) {
      break;
    }
    const bool taken = take_option(command.usage, word, arguments);
    nameless |= taken && word == kNameOption;
    if (!taken) {
      if (shape.text && arguments.words.size() == shape.allowed) {
        break;
      }
      arguments.words.emplace_back(word);
    }
    rest = behind;
  }
  arguments.text = shape.text ? trimmed(rest) : std::string_view();
  const std::size_t count = arguments.words.size();
  const bool wrong_count = count < shape.required || (count > shape.allowed && !shape.unlimited) ||
                           std::ranges::any_of(arguments.words, is_flag);
  if (wrong_count || nameless || (shape.text_required && arguments.text.empty())) {
    return {ErrorCode::kInvalidArgument,
            "usage: " + usage_of(command) + "; /help " + std::string(command.name) + " says more"};
  }
  return arguments;
}

const Command* find_command(std::string_view name) {
  for (const std::span<const Command> table : {item_commands(), talk_commands()}) {
    for (const Command& command : table) {
      if (command.name == name) {
        return &command;
      }
    }
  }
  return nullptr;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const std::span<const Command> table : {item_commands(), talk_commands()}) {
    for (const Command& command : table) {
      names.emplace_back(command.name);
    }
  }
  return names;
}

std::string usage_of(const Command& command) {
  return "/" + std::string(command.name) + (command.usage.empty() ? "" : " ") +
         std::string(command.usage);
}

}  // namespace quire::cli
