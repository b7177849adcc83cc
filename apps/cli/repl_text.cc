#include "repl_text.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "nearest.h"
#include "options.h"
#include "output.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tools.h"
#include "quire/types.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";

// Returns a setting as /set shows it.
template <class Value>
json::value shown(const Value& value) {
  return json::value_from(value);
}
template <class Value>
json::value shown(const std::optional<Value>& value) {
  return value ? json::value(*value) : json::value("none");
}
json::value shown(const std::vector<std::pair<TokenId, double>>& bias) {
  json::array entries;
  for (const auto& [token, value] : bias) {
    entries.emplace_back(std::to_string(token) + "=" + json_text(json::value(value)));
  }
  return entries;
}

json::value shown(const SamplingParams& params, const SamplingField& field) {
  return std::visit([&params](auto member) { return shown(params.*member); }, field.member);
}

json::array short_ids(std::span<const std::string> ids) {
  json::array shown;
  for (const std::string& id : ids) {
    shown.emplace_back(id.substr(0, kShownDigits));
  }
  return shown;
}

// Names the setting that was probably meant, also where it was written as NAME=VALUE.
Status no_setting(const std::string& name) {
  const std::size_t equals = name.find('=');
  std::string word = name.substr(0, equals);
  std::ranges::replace(word, '-', '_');
  const std::string right = nearest(word, setting_names());
  std::string meant;
  if (!right.empty()) {
    const bool has_value = equals != std::string::npos && equals + 1 < name.size();
    meant = " did you mean /set " + right + (has_value ? " " + name.substr(equals + 1) : "") + "?";
  }
  return {ErrorCode::kNotFound, "no setting \"" + name + "\";" + meant + " /set lists them"};
}

// Shortens the texts in the last cells, so that each row fits into `columns`. Some letters of each
// text stay. 0 columns: any number.
void shorten_texts(std::vector<std::vector<std::string>>& rows, std::size_t columns) {
  constexpr std::size_t kLeast = 12;
  constexpr std::size_t kMost = 60;
  auto others = rows;
  for (auto& row : others) {
    row.back() = "|";
  }
  // Room that the other columns and "..." take.
  const std::size_t before = format_table(others).front().size() + 2;
  const std::size_t left = columns == 0 ? kMost : columns - std::min(columns, before);
  const std::size_t room = std::clamp(left, kLeast, kMost);
  for (auto& row : rows) {
    row.back() = preview(row.back(), room);
  }
}

// Returns CLI11's refusal of the option in the words of a setting.
Error refused_setting(std::string name, const std::string& value, const CLI::ParseError& error) {
  const std::string said = error.what(), option = "--" + name + ": ";
  std::ranges::replace(name, '-', '_');
  return {.code = ErrorCode::kInvalidArgument,
          .message = said.starts_with(option) ? name + ": " + said.substr(option.size())
                                              : name + " cannot be \"" + value + "\""};
}

}  // namespace

std::string title(const ContextItem& item) {
  return std::string(item_kind_name(item.kind)) + " " + item.id.substr(0, kShownDigits) +
         (item.name.empty() ? "" : " " + item.name) + ", " + std::to_string(item.token_ids.size()) +
         " tokens";
}

std::string item_table(std::span<const ContextItem> items, bool colours) {
  std::vector<std::vector<std::string>> rows = {
      {"id", "kind", "name", "active", "tier", "saved", "tokens", "text"}};
  for (const ContextItem& item : items) {
    rows.push_back({item.id.substr(0, kShownDigits), item_kind_name(item.kind),
                    item.name.empty() ? "-" : item.name, item.active ? "on" : "off",
                    tier_name(item.tier), item.saved ? "yes" : "no",
                    std::to_string(item.token_ids.size()), item.text});
  }
  shorten_texts(rows, terminal_columns(STDOUT_FILENO));
  const std::vector<std::string> lines = format_table(rows);
  std::string table = lines.front() + "\n";
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool dim = colours && !items[i].active;
    table += dim ? std::string(kDim) + lines[i + 1] + std::string(kPlain) : lines[i + 1];
    table += '\n';
  }
  return table;
}

std::string item_listing(const ContextItem& item) {
  json::object object{{"id", item.id}, {"kind", item_kind_name(item.kind)}};
  if (!item.name.empty()) {
    object["name"] = item.name;
  }
  object["active"] = item.active;
  object["tier"] = tier_name(item.tier);
  object["saved"] = item.saved;
  object["tags"] = json::value_from(item.tags);
  object["parents"] = short_ids(item.parents);
  if (item.retention.pinned) {
    object["pinned"] = true;
  }
  if (item.retention.priority != 0) {
    object["priority"] = item.retention.priority;
  }
  if (item.retention.ttl_seconds) {
    object["ttl_seconds"] = *item.retention.ttl_seconds;
  }
  if (!item.sampling_json.empty()) {
    object["sampling"] = item.sampling_json;
  }
  object["tokens"] = item.token_ids.size();
  object["memory_bytes"] = item.memory_bytes;
  object["text"] = item.text;
  return format_listing(object);
}

Result<SamplingParams> with_settings(const SamplingParams& base,
                                     const std::map<std::string, std::string>& settings) {
  SamplingParams params = base;
  CLI::App app;
  app.set_help_flag();  // "help" is no setting
  add_sampling_options(app, params);
  for (const auto& [name, value] : settings) {
    std::string option = "--" + name;
    if (app.get_option_no_throw(option) == nullptr) {
      return no_setting(name).error();
    }
    try {
      option.append("=").append(value);
      app.parse(std::vector<std::string>{option});
    } catch (const CLI::ParseError& error) {
      return refused_setting(name, value, error);
    }
  }
  QUIRE_TRY_STATUS(params.validate());
  return params;
}

Result<std::string> settings_listing(const SamplingParams& params, const std::string& name) {
  std::string key = name;
  std::ranges::replace(key, '-', '_');
  json::object listed;
  for (const SamplingField& field : settable_fields()) {
    if (name.empty() || field.name == key) {
      listed[field.name] = shown(params, field);
    }
  }
  if (listed.empty()) {
    return no_setting(name).error();
  }
  return format_listing(listed);
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const SamplingField& field : settable_fields()) {
    names.emplace_back(field.name);
  }
  return names;
}

std::vector<std::string> files_like(std::string_view beginning) {
  const std::size_t folder_end = beginning.find_last_of('/') + 1;
  const std::string folder(beginning.substr(0, folder_end));
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator files(folder.empty() ? "." : expand_home(folder), error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    std::error_code unknown;
    const std::string path = folder + files->path().filename().string();
    if (path.starts_with(beginning)) {
      paths.push_back(path + (files->is_directory(unknown) ? "/" : ""));
    }
  }
  std::ranges::sort(paths);
  return paths;
}

}  // namespace quire::cli
