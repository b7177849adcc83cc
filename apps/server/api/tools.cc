#include "api/tools.h"

#include <span>
#include <string>

#include "api/errors.h"
#include "api/fields.h"

namespace quire::server {
namespace {

constexpr const char* kNoConstraint = "constrained output is not there yet";

constexpr FieldRule kFunctionRules[] = {
    {.name = "name",
     .kinds = kString,
     .help = "name of the function",
     .required = true,
     .min_size = 1,
     .max_size = 256},
    {.name = "description", .kinds = kString, .help = "given to the template"},
    {.name = "parameters", .kinds = kObject, .help = "JSON schema of the arguments"},
    {.name = "strict",
     .kinds = kBool,
     .help = kNoConstraint,
     .effect = Effect::kRefused,
     .only = "false"},
};
const FieldTable& function_table() {
  static const FieldTable table{"Function", "A function that may be called.", {kFunctionRules}};
  return table;
}

const FieldTable& tool_table() {
  static const FieldRule rules[] = {
      {.name = "type", .kinds = kString, .help = "function", .required = true, .words = "function"},
      {.name = "function",
       .kinds = kObject,
       .help = "what may be called",
       .required = true,
       .members = &function_table()},
  };
  static const FieldTable table{"Tool", "A tool that the model may use.", {rules}};
  return table;
}

}  // namespace

std::span<const FieldRule> tool_rules() {
  static const FieldRule rules[] = {
      {.name = "tools",
       .kinds = kArray,
       .help = "given to the template; calls come as tool_calls",
       .max_size = 128,
       .members = &tool_table(),
       .elements = kObject},
      {.name = "tool_choice",
       .kinds = kString | kObject,
       .help = "none hides the tools; required and a function's name are refused: constrained "
               "output is not there yet",
       .words = "auto|none|required"},
      {.name = "parallel_tool_calls",
       .kinds = kBool,
       .help = kNoConstraint,
       .effect = Effect::kRefused,
       .only = "true"},
  };
  return rules;
}

Checked<std::string> read_tools(const Members& members, json::object& variables) {
  const auto choice = members.text("tool_choice");
  if (members.object("tool_choice") != nullptr || choice == "required") {
    return unsupported("tool_choice", kNoConstraint);
  }
  const json::array* const tools = members.array("tools");
  if (tools == nullptr || tools->empty() || choice == "none") {
    return std::string();
  }
  variables["tools"] = *tools;
  return json::serialize(*tools);
}

}  // namespace quire::server
