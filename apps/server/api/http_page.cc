// The part of docs/http.md that the tables make.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/fields.h"
#include "api/openapi.h"
#include "api/router.h"

namespace quire::server {
namespace {

std::string words_list(std::string_view words) {
  std::string text;
  for (const char c : words) {
    text += c == '|' ? std::string("`, `") : std::string(1, c);
  }
  return "`" + text + "`";
}

std::string short_number(double value) {
  const bool whole = std::floor(value) == value && std::abs(value) < 1e15;
  return json::serialize(whole ? json::value(static_cast<std::int64_t>(value))
                               : json::value(value));
}

// Returns the types of a field, such as "string or list of objects".
std::string type_text(const FieldRule& rule) {
  constexpr std::pair<Kind, const char*> kNames[] = {{kBool, "boolean"},  {kInteger, "integer"},
                                                     {kNumber, "number"}, {kString, "string"},
                                                     {kArray, "list"},    {kObject, "object"}};
  std::string text;
  for (const auto& [kind, name] : kNames) {
    if ((rule.kinds & kind) != 0) {
      text += text.empty() ? "" : " or ";
      text += name;
    }
  }
  if (rule.members != nullptr) {
    std::string anchor;
    for (const char c : std::string_view(rule.members->name)) {
      anchor += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 32 : c);
    }
    text += std::string(" of [") + rule.members->name + "](#" + anchor + ")";
  }
  return text;
}

std::string range_text_of(const FieldRule& rule) {
  std::string text;
  if (rule.words[0] != '\0') {
    text = words_list(rule.words);
  }
  if (std::isfinite(rule.min)) {
    text += (rule.above ? "> " : ">= ") + short_number(rule.min);
  }
  if (std::isfinite(rule.max) && rule.max < 1e9) {
    text += (text.empty() ? "<= " : ", <= ") + short_number(rule.max);
  }
  return text;
}

std::string effect_text(const FieldRule& rule) {
  const std::string help = rule.help;
  switch (rule.effect) {
    case Effect::kIgnored:
      return "no effect";
    case Effect::kRefused:
      return "refused" +
             (rule.only[0] != '\0' ? " but for `" + std::string(rule.only) + "`" : std::string()) +
             (help.empty() ? "" : ": " + help);
    case Effect::kHonoured:
      break;
  }
  return (rule.required ? "required; " : "") + help;
}

void append_table(std::string& page, const FieldTable& table) {
  page += "| field | type | range | effect |\n|---|---|---|---|\n";
  for (const auto& part : table.parts) {
    for (const FieldRule& rule : part) {
      page += std::string("| `") + rule.name + "` | " + type_text(rule) + " | " +
              range_text_of(rule) + " | " + effect_text(rule) + " |\n";
    }
  }
}

void collect(const FieldTable& table, std::set<std::string>& seen,
             std::vector<const FieldTable*>& tables) {
  for (const auto& part : table.parts) {
    for (const FieldRule& rule : part) {
      if (rule.members != nullptr && seen.insert(rule.members->name).second) {
        tables.push_back(rule.members);
        collect(*rule.members, seen, tables);
      }
    }
  }
}

const char* access_text(const Endpoint& endpoint) {
  switch (endpoint.access) {
    case Access::kOpen:
      return "needs no key";
    case Access::kAdmin:
      return "role admin";
    case Access::kUser:
      break;
  }
  return "any key";
}

}  // namespace

std::string http_page(const Router& router) {
  std::string page = "| endpoint | what it does | who |\n|---|---|---|\n";
  std::vector<const FieldTable*> bodies;
  std::vector<const FieldTable*> members;
  std::set<std::string> seen;
  for (const Endpoint* const endpoint : router.endpoints()) {
    std::string pattern = endpoint->pattern;
    if (const std::size_t at = pattern.find("..."); at != std::string::npos) {
      pattern.erase(at, 3);
    }
    const std::string method =
        std::string_view(endpoint->method) == "*" ? "any method" : endpoint->method;
    page.append("| `").append(method).append(" ").append(pattern).append("` | ");
    page.append(endpoint->summary).append(" | ").append(access_text(*endpoint)).append(" |\n");
    if (endpoint->body != nullptr && seen.insert(endpoint->body->name).second) {
      bodies.push_back(endpoint->body);
    }
  }
  for (const FieldTable* const table : bodies) {
    collect(*table, seen, members);
  }
  page += "\n## Bodies\n";
  for (const auto& tables : {bodies, members}) {
    for (const FieldTable* const table : tables) {
      page += std::string("\n### ") + table->name + "\n\n" + table->summary + "\n\n";
      append_table(page, *table);
    }
  }
  return page;
}

}  // namespace quire::server
