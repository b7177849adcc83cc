#include "api/openapi.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "api/call.h"
#include "api/endpoints.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/router.h"
#include "message.h"
#include "quire/tools.h"

namespace quire::server {
namespace {

json::object reference(const char* name) {
  json::object object;
  object["$ref"] = std::string("#/components/schemas/") + name;
  return object;
}

json::array types_of(std::uint8_t kinds) {
  constexpr std::pair<Kind, const char*> kNames[] = {{kBool, "boolean"},  {kInteger, "integer"},
                                                     {kNumber, "number"}, {kString, "string"},
                                                     {kArray, "array"},   {kObject, "object"}};
  json::array types;
  for (const auto& [kind, name] : kNames) {
    if ((kinds & kind) != 0) {
      types.emplace_back(name);
    }
  }
  return types;
}

json::array words_of(std::string_view words) {
  json::array list;
  while (true) {
    const std::size_t end = words.find('|');
    list.emplace_back(json_view(words.substr(0, end)));
    if (end == std::string_view::npos) {
      return list;
    }
    words.remove_prefix(end + 1);
  }
}

void set_ranges(json::object& schema, const FieldRule& rule) {
  if (std::isfinite(rule.min)) {
    schema[rule.above ? "exclusiveMinimum" : "minimum"] = rule.min;
  }
  if (std::isfinite(rule.max)) {
    schema["maximum"] = rule.max;
  }
  const bool text = (rule.kinds & kString) != 0;
  const bool list = (rule.kinds & kArray) != 0;
  if (rule.min_size > 0) {
    if (text) {
      schema["minLength"] = rule.min_size;
    }
    if (list) {
      schema["minItems"] = rule.min_size;
    }
  }
  if (rule.max_size != std::numeric_limits<std::int64_t>::max()) {
    if (text) {
      schema["maxLength"] = rule.max_size;
    }
    if (list) {
      schema["maxItems"] = rule.max_size;
    }
  }
}

json::value schema_of(const FieldRule& rule) {
  json::object schema;
  if (rule.help[0] != '\0') {
    schema["description"] = rule.help;
  } else if (rule.effect == Effect::kIgnored) {
    schema["description"] = "accepted without effect";
  }
  if (rule.kinds == kObject && rule.members != nullptr) {
    json::array any;
    any.push_back(reference(rule.members->name));
    if (!rule.required) {
      any.push_back(json::object{{"type", "null"}});
    }
    schema["anyOf"] = std::move(any);
    return schema;
  }
  json::array types = types_of(rule.kinds);
  if (!rule.required) {
    types.emplace_back("null");
  }
  schema["type"] = types.size() == 1 ? types.front() : json::value(types);
  if (rule.words[0] != '\0') {
    json::array words = words_of(rule.words);
    if (!rule.required) {
      words.emplace_back(nullptr);
    }
    schema["enum"] = std::move(words);
  }
  set_ranges(schema, rule);
  if ((rule.kinds & kArray) != 0) {
    if (rule.members != nullptr) {
      schema["items"] = reference(rule.members->name);
    } else if (rule.elements != 0) {
      const json::array elements = types_of(rule.elements);
      schema["items"] = {{"type", elements.size() == 1 ? elements.front() : json::value(elements)}};
    }
  }
  return schema;
}

// Adds the schema of a table, and of those that it names.
void add_schema(json::object& schemas, const FieldTable& table) {
  if (schemas.contains(table.name)) {
    return;
  }
  schemas[table.name] = nullptr;
  json::object properties;
  json::array required;
  for (const auto& part : table.parts) {
    for (const FieldRule& rule : part) {
      if (rule.effect == Effect::kRefused) {
        continue;
      }
      properties[rule.name] = schema_of(rule);
      if (rule.required) {
        required.emplace_back(rule.name);
      }
      if (rule.members != nullptr) {
        add_schema(schemas, *rule.members);
      }
    }
  }
  json::object schema;
  schema["type"] = "object";
  schema["description"] = table.summary;
  schema["properties"] = std::move(properties);
  if (!required.empty()) {
    schema["required"] = std::move(required);
  }
  schema["additionalProperties"] = table.open || table.lenient;
  schemas[table.name] = std::move(schema);
}

// Returns "/v1/models/{model}" for "/v1/models/{model...}".
std::string plain_path(std::string_view pattern) {
  std::string path(pattern);
  if (const std::size_t at = path.find("..."); at != std::string::npos) {
    path.erase(at, 3);
  }
  return path;
}

json::array parameters_of(const Endpoint& endpoint) {
  json::array parameters;
  const std::string path = plain_path(endpoint.pattern);
  for (std::size_t at = path.find('{'); at != std::string::npos; at = path.find('{', at + 1)) {
    json::object parameter;
    parameter["name"] = path.substr(at + 1, path.find('}', at) - at - 1);
    parameter["in"] = "path";
    parameter["required"] = true;
    parameter["schema"] = {{"type", "string"}};
    parameters.push_back(std::move(parameter));
  }
  for (const QueryRule& rule : endpoint.query) {
    json::object parameter;
    parameter["name"] = rule.name;
    parameter["in"] = "query";
    parameter["description"] = rule.help;
    parameter["schema"] = {{"type", rule.type}};
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

bool streams(const Endpoint& endpoint) {
  return endpoint.body != nullptr && endpoint.body->find("stream") != nullptr;
}

json::object responses_of(const Endpoint& endpoint) {
  json::object content;
  content[endpoint.content] = {{"schema",
                                {{"type", std::string_view(endpoint.content) == "application/json"
                                              ? json::value(json::array{"object", "array"})
                                              : json::value("string")}}}};
  if (streams(endpoint)) {
    content["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  }
  json::object responses;
  std::string_view statuses = endpoint.statuses;
  while (true) {
    const std::size_t end = statuses.find(',');
    json::object response;
    response["description"] = "Success.";
    response["content"] = content;
    responses[json_view(statuses.substr(0, end))] = std::move(response);
    if (end == std::string_view::npos) {
      break;
    }
    statuses.remove_prefix(end + 1);
  }
  json::object failure;
  failure["description"] = "A refusal or failure.";
  failure["content"] = {{"application/json", {{"schema", reference("Error")}}}};
  responses["default"] = std::move(failure);
  return responses;
}

std::string operation_id(const Endpoint& endpoint) {
  std::string id = endpoint.method;
  for (const char c : plain_path(endpoint.pattern)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain) {
      id += c;
    } else if (!id.empty() && id.back() != '_') {
      id += '_';
    }
  }
  while (id.back() == '_') {
    id.pop_back();
  }
  return id;
}

json::object operation_of(const Endpoint& endpoint) {
  json::object operation;
  operation["operationId"] = operation_id(endpoint);
  operation["summary"] = endpoint.summary;
  if (json::array parameters = parameters_of(endpoint); !parameters.empty()) {
    operation["parameters"] = std::move(parameters);
  }
  if (endpoint.body != nullptr) {
    json::object body;
    body["required"] = true;
    body["content"] = {{"application/json", {{"schema", reference(endpoint.body->name)}}}};
    operation["requestBody"] = std::move(body);
  }
  operation["responses"] = responses_of(endpoint);
  if (endpoint.access == Access::kOpen) {
    operation["security"] = json::array();
  }
  return operation;
}

json::object error_schema() {
  const json::value null_or_text = {{"type", json::array{"string", "null"}}};
  json::object error;
  error["type"] = "object";
  error["required"] = {"message", "type", "param", "code"};
  error["properties"] = {{"message", {{"type", "string"}}},
                         {"type", {{"type", "string"}}},
                         {"param", null_or_text},
                         {"code", null_or_text}};
  json::object schema;
  schema["type"] = "object";
  schema["required"] = json::array{"error"};
  schema["properties"] = {{"error", error}, {"quire", {{"type", "object"}}}};
  return schema;
}

void write_pretty(std::string& out, const json::value& value, std::size_t indent) {
  const std::string line = "\n" + std::string(indent + 1, ' ');
  const bool object = value.is_object() && !value.get_object().empty();
  const bool list =
      value.is_array() && !value.get_array().empty() && value.get_array().front().is_structured();
  if (!object && !list) {
    out += json::serialize(value);
    return;
  }
  out += object ? '{' : '[';
  const char* separator = "";
  if (object) {
    for (const auto& member : value.get_object()) {
      out += separator + line;
      append_json_string(out, {member.key().data(), member.key().size()});
      out += ": ";
      write_pretty(out, member.value(), indent + 1);
      separator = ",";
    }
  } else {
    for (const json::value& element : value.get_array()) {
      out += separator + line;
      write_pretty(out, element, indent + 1);
      separator = ",";
    }
  }
  out += "\n" + std::string(indent, ' ');
  out += object ? '}' : ']';
}

void get_openapi(Services& services, CallPtr call) {
  static const std::string body = json::serialize(openapi_json(services.router));
  Response response;
  response.body = body;
  call->answer->send(std::move(response));
}

constexpr Endpoint kOpenapiEndpoints[] = {
    {.method = "GET",
     .pattern = "/openapi.json",
     .summary = "Describes the API.",
     .handle = get_openapi},
};

}  // namespace

json::object openapi_json(const Router& router) {
  json::object paths;
  json::object schemas;
  for (const Endpoint* const endpoint : router.endpoints()) {
    std::string method = endpoint->method;
    if (method == "*") {
      continue;
    }
    std::ranges::transform(method, method.begin(),
                           [](char c) { return static_cast<char>(c | 32); });
    if (endpoint->body != nullptr) {
      add_schema(schemas, *endpoint->body);
    }
    json::value& path = paths[plain_path(endpoint->pattern)];
    if (path.is_null()) {
      path.emplace_object();
    }
    path.get_object()[method] = operation_of(*endpoint);
  }
  schemas["Error"] = error_schema();
  json::object bearer;
  bearer["type"] = "http";
  bearer["scheme"] = "bearer";
  json::object root;
  root["openapi"] = "3.1.0";
  root["info"] = {{"title", "Quire"},
                  {"version", version()},
                  {"description", "Large language models with KV that its users own."},
                  {"license", {{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}}};
  root["security"] = json::array{json::object{{"key", json::array()}}, json::object()};
  root["paths"] = std::move(paths);
  root["components"] = {{"schemas", std::move(schemas)},
                        {"securitySchemes", {{"key", std::move(bearer)}}}};
  return root;
}

std::string pretty_json(const json::value& value) {
  std::string out;
  write_pretty(out, value, 0);
  out += '\n';
  return out;
}

std::span<const Endpoint> openapi_endpoints() { return kOpenapiEndpoints; }

}  // namespace quire::server
