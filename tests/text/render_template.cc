// Renders chat templates for comparison with jinja2: one JSON object a line on stdin
// ({"template": ..., "variables": {...}, "now": seconds of local time}), one a line on stdout
// ({"spans": [[text, source], ...]} or {"error": message, "code": name}).
#include <boost/json.hpp>
#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"

namespace {

namespace json = boost::json;
using quire::text::ChatTemplate;

json::object failure(const quire::Error& error) {
  return {{"error", error.message}, {"code", quire::error_code_name(error.code)}};
}

json::object render(const ChatTemplate& parsed, const json::object& request) {
  quire::text::RenderOptions options;
  options.now =
      std::chrono::local_seconds(std::chrono::seconds(request.at("now").to_number<std::int64_t>()));
  const auto variables =
      quire::base::parse_json(json::serialize(request.at("variables")), "variables");
  if (!variables.ok()) {
    return failure(variables.error());
  }
  const auto prompt = parsed.render(*variables, options);
  if (!prompt.ok()) {
    return failure(prompt.error());
  }
  json::array spans;
  for (const auto& span : prompt->spans) {
    spans.push_back(json::array{span.text, span.from.source});
  }
  return {{"spans", std::move(spans)}};
}

}  // namespace

int main() {
  std::string source;
  std::optional<quire::Result<ChatTemplate>> parsed;
  for (std::string line; std::getline(std::cin, line);) {
    json::parse_options options;
    options.max_depth = 256;
    const json::object request = json::parse(line, {}, options).as_object();
    const std::string_view wanted = request.at("template").as_string();
    if (!parsed || wanted != source) {
      source = wanted;
      parsed.emplace(ChatTemplate::parse(source));
    }
    std::cout << json::serialize(parsed->ok() ? render(**parsed, request)
                                              : failure(parsed->error()))
              << '\n';
  }
}
