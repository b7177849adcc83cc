#include "commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "line.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "usage.h"

namespace quire::cli {
namespace {

constexpr std::string_view kNameOption = "name=";

// Takes the first word off `text`; "" at the end.
std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
  text.remove_prefix(word.size());
  return word;
}

// Returns the arguments that stand by their place, in order.
std::vector<const CLI::Option*> positionals(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

// Returns the option that a word names, or null.
const CLI::Option* option_of_word(const CLI::App& command, std::string_view word) {
  const bool is_name = word.starts_with(kNameOption);
  const bool is_option = word.starts_with("--");
  return is_name || is_option
             ? command.get_option_no_throw(is_name ? "--name"
                                                   : std::string(word.substr(0, word.find('='))))
             : nullptr;
}

// Writes name=NAME as CLI11 takes it.
void push_word(const CLI::App& command, std::string_view word, std::vector<std::string>& words) {
  if (word.starts_with(kNameOption) && option_of_word(command, word) != nullptr) {
    words.emplace_back("--name");
    word.remove_prefix(kNameOption.size());
  }
  words.emplace_back(word);
}

// Returns the words of `rest`, which end with a text: options and the arguments before it, then all
// that is left as one word.
std::vector<std::string> words_before_text(const CLI::App& command, std::string_view rest) {
  std::vector<std::string> words;
  std::size_t before = positionals(command).size() - 1;
  while (true) {
    std::string_view behind = rest;
    const std::string_view word = take_word(behind);
    const CLI::Option* const option = option_of_word(command, word);
    if (word.empty() || (option == nullptr && before == 0)) {
      break;
    }
    before -= option == nullptr ? 1 : 0;
    push_word(command, word, words);
    if (option != nullptr && option->get_items_expected_max() > 0 &&
        word.find('=') == std::string_view::npos) {
      words.emplace_back(take_word(behind));
    }
    rest = behind;
  }
  if (const std::string_view text = trimmed(rest); !text.empty()) {
    words.insert(words.end(), {"--", std::string(text)});
  }
  return words;
}

bool ends_with_text(const CLI::App& command) {
  const auto all = positionals(command);
  return !all.empty() && all.back()->get_name(true).starts_with("TEXT");
}

Result<std::vector<std::string>> words_of_line(const CLI::App& command, std::string_view rest) {
  if (ends_with_text(command)) {
    return words_before_text(command, rest);
  }
  QUIRE_TRY(const std::vector<std::string> split, split_words(std::string(rest)));
  std::vector<std::string> words;
  for (const std::string& word : split) {
    push_word(command, word, words);
  }
  return words;
}

// Returns the command with this name, or null.
const CLI::App* find_command(const CLI::App& app, std::string_view name) {
  const std::vector<const CLI::App*> all = app.get_subcommands({});
  const auto found = std::ranges::find(all, name, &CLI::App::get_name);
  return found == all.end() ? nullptr : *found;
}

std::string help_table(const std::vector<const CLI::App*>& commands) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(commands.size());
  for (const CLI::App* const command : commands) {
    rows.push_back({synopsis(*command), command->get_description()});
  }
  std::string text;
  for (const std::string& line : format_table(rows)) {
    text += line + "\n";
  }
  return text;
}

std::string help_of_command(const CLI::App& command) {
  return help_table({&command}) + command.get_footer();
}

Status print_text(Repl& /*repl*/, const Arguments& arguments) { return print(arguments.text); }

void require(CLI::Option& option, Presence presence) {
  option.required(presence == Presence::kRequired);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

LineCommand& LineCommand::ids(Presence presence) {
  require(*command_.add_option("ID", to_->ids), presence);
  return *this;
}

LineCommand& LineCommand::id(Presence presence) {
  const auto set = [to = to_](const std::string& id) { to->ids = {id}; };
  require(*command_.add_option_function<std::string>("ID", set), presence);
  return *this;
}

LineCommand& LineCommand::word(const char* name, Presence presence) {
  require(*command_.add_option(name, to_->word), presence);
  return *this;
}

LineCommand& LineCommand::text(const char* name, Presence presence) {
  command_.set_help_flag();
  require(*command_.add_option(name, to_->text), presence);
  return *this;
}

LineCommand& LineCommand::name() {
  add_name(command_, to_->name, "to call the item by");
  return *this;
}

LineCommand& LineCommand::flag(const char* option, const char* help) {
  command_.add_flag(option, to_->flag, help);
  return *this;
}

LineCommand& LineCommand::number() {
  command_.add_option("NUMBER", to_->number)->required();
  return *this;
}

LineCommand& LineCommand::seconds() {
  command_.add_option("SECONDS", to_->seconds);
  return *this;
}

LineCommand& LineCommand::more(const char* lines) {
  command_.footer(lines);
  return *this;
}

LineCommands::LineCommands() : app_(std::make_unique<CLI::App>("Commands of a chat", kChatName)) {
  app_->require_subcommand(1);
  declare_talk_commands(*this);
  declare_item_commands(*this);
}

LineCommands::~LineCommands() = default;

LineCommand LineCommands::add(const char* name, const char* help, ChatWork work) {
  CLI::App* const command = app_->add_subcommand(name, help);
  command->group(group_);
  auto to = std::make_shared<Arguments>();
  command->callback([this, to, work] { parsed_ = {.work = work, .arguments = *to}; });
  return {*command, std::move(to)};
}

Result<ParsedLine> LineCommands::parse(std::string_view line) {
  const std::string name(take_word(line));
  const CLI::App* const command = find_command(*app_, name);
  if (command == nullptr) {
    return {ErrorCode::kInvalidArgument, unknown_command(*app_, name)};
  }
  refuse_no_numbers(*app_);
  QUIRE_TRY(std::vector<std::string> words, words_of_line(*command, line));
  words.insert(words.begin(), name);
  QUIRE_TRY(const std::string help, parse_words(*app_, std::move(words)));
  if (!help.empty()) {
    parsed_ = {.work = &print_text, .arguments = {.text = help_of_command(*command)}};
  }
  return parsed_;
}

std::vector<std::string> LineCommands::names() const {
  std::vector<std::string> names;
  for (const CLI::App* const command : app_->get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

bool LineCommands::takes(std::string_view command, std::string_view argument) const {
  const CLI::App* const found = find_command(*app_, command);
  return found != nullptr &&
         std::ranges::any_of(positionals(*found), [argument](const CLI::Option* option) {
           return option->get_name(true).find(argument) != std::string::npos;
         });
}

std::string LineCommands::table(const char* group) const {
  return help_table(std::as_const(*app_).get_subcommands(
      [group](const CLI::App* command) { return command->get_group() == group; }));
}

Result<std::string> LineCommands::help(const std::string& name) const {
  const CLI::App* const command = find_command(*app_, name);
  if (command == nullptr) {
    return {ErrorCode::kNotFound, "no command \"/" + name + "\"; /help lists them"};
  }
  return help_of_command(*command);
}

}  // namespace quire::cli
