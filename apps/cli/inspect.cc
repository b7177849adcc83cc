// quire inspect: what a model holds and needs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "command.h"
#include "hub.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::cli {
namespace {

struct InspectOptions {
  std::string model;
  Format format = Format::kText;
};

namespace json = boost::json;

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Returns the members of an object of the report; none of one that a model which does not load
// lacks.
json::object members(const json::value& report, std::string_view name) {
  const json::value* const found = report.as_object().if_contains(name);
  return found != nullptr && found->is_object() ? found->as_object() : json::object();
}

// Returns a line for each group of layers: what it holds of tokens, and its bytes.
json::object groups_for_people(const json::array& groups) {
  json::object lines;
  for (const json::value& value : groups) {
    const json::object& group = value.as_object();
    const bool is_state = group.at("kind").as_string() == "state";
    std::string name(group.at("kind").as_string());
    name += " (" + std::to_string(group.at("layers").as_array().size()) + " layers)";
    if (const json::value* const window = group.if_contains("window")) {
      name += " of " + std::to_string(window->as_int64());
    }
    lines[name] = in_units(group.at(is_state ? "bytes" : "bytes_per_token").to_number<double>()) +
                  (is_state ? " a state" : " a token");
  }
  return lines;
}

// Returns the report as people read it: bytes in units, and how many tokens of KV fit in a GiB.
json::value for_people(json::value report) {
  json::object& top = report.as_object();
  json::object weights = members(report, "weight_bytes");
  for (auto& member : weights) {
    member.value() = in_units(member.value().to_number<double>());
  }
  const json::object shape = members(report, "shape");
  const json::value* const positions = shape.if_contains("max_positions");
  json::object kv = members(report, "kv_bytes_per_token");
  for (auto& member : kv) {
    const double each = std::max(member.value().to_number<double>(), 1.0);
    member.value() = in_units(each) + "; in 1 GiB " +
                     std::to_string(static_cast<std::int64_t>(kGiB / each)) + " tokens" +
                     (positions == nullptr ? ""
                                           : "; the whole context " +
                                                 in_units(each * positions->to_number<double>()));
  }
  if (!weights.empty()) {
    top["weight_bytes"] = std::move(weights);
  }
  if (!kv.empty()) {
    top["kv_bytes_per_token"] = std::move(kv);
  }
  if (json::value* const groups = top.if_contains("groups")) {
    *groups = groups_for_people(json::array(groups->as_array()));
  }
  if (json::value* const file = top.if_contains("file_bytes")) {
    *file = in_units(file->to_number<double>());
  }
  return report;
}

// Prints a model. `text` is JSON that the library made.
int print_model(const std::string& text, Format format) {
  const Status done = format == Format::kJson
                          ? print(text + "\n")
                          : print(format_listing(for_people(json::parse(text))));
  return done.ok() ? kExitOk : fail(done.error());
}

int inspect(const InspectOptions& options) {
  const auto model = find_model(options.model);
  const auto text = model.ok() ? inspect_json(*model) : model.error();
  return text.ok() ? print_model(text.value(), options.format) : fail(text.error());
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a model holds, needs in memory, and what of it is unsupported");
  auto options = std::make_shared<InspectOptions>();
  add_model(*command, options->model);
  add_format(*command, options->format);
  command->callback([options, &action] { action = [options] { return inspect(*options); }; });
}

}  // namespace quire::cli
