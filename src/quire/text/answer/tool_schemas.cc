#include "quire/text/answer/tool_schemas.h"

#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/answer/marked_text.h"

namespace quire::text::answer {

Result<ToolSchemas> ToolSchemas::read(std::string_view tools_json) {
  ToolSchemas schemas;
  if (tools_json.empty()) {
    return schemas;
  }
  QUIRE_TRY(const base::Json tools, base::parse_json(tools_json, "tools"));
  if (tools.view().is_null()) {
    return schemas;
  }
  if (!tools.view().is_array()) {
    return {ErrorCode::kInvalidArgument, "tools must be a list"};
  }
  schemas.count_ = tools.view().size();
  for (const base::JsonView tool : tools.view().elements()) {
    const base::JsonView function = tool.contains("function") ? tool.find("function") : tool;
    const base::JsonView name = function.find("name");
    if (!name.is_string()) {
      continue;
    }
    auto& types = schemas.is_text_[std::string(name.as_string())];
    for (const auto [parameter, schema] :
         function.find("parameters").find("properties").members()) {
      types[std::string(parameter)] = schema.find("type") == "string";
    }
  }
  return schemas;
}

base::Json ToolSchemas::value(std::string_view function, std::string_view parameter,
                              std::string_view text) const {
  if (const auto types = is_text_.find(function); types != is_text_.end()) {
    const auto type = types->second.find(parameter);
    if (type != types->second.end() && type->second) {
      return text;
    }
  }
  auto parsed = base::parse_json(trimmed(text), "value");
  return parsed.ok() ? std::move(parsed).value() : base::Json(text);
}

}  // namespace quire::text::answer
