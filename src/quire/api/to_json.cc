// Options and outputs as JSON.
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/chat.h"
#include "quire/context_types.h"
#include "quire/engine/json_values.h"
#include "quire/engine/sampling_json.h"
#include "quire/fields.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {
namespace {

using base::Json;

using engine::json_of;

template <class Output>
Json object_of(const Output& output);
template <class Output>
Json list_of(std::span<const Output> outputs);

// Returns the JSON of a member's value, as each json_of does.
Json json_of(MissingIfEmpty value) { return json_of(value.text); }
Json json_of(RequestId id) { return id.value; }
Json json_of(FinishReason reason) { return finish_reason_name(reason); }
Json json_of(ReuseGrade grade) { return reuse_grade_name(grade); }
Json json_of(const StoppedBy& by) {
  switch (by.kind) {
    case StoppedBy::Kind::kEos:
      return "eos";
    case StoppedBy::Kind::kStopId:
      return by.id;
    case StoppedBy::Kind::kStopString:
      return json_of(by.text);
    case StoppedBy::Kind::kLength:
      return "length";
    case StoppedBy::Kind::kNothing:
      break;
  }
  return nullptr;
}
// Arguments that the library has made are a JSON object.
Json json_of(const ToolCall& call) {
  auto arguments = base::parse_json(call.arguments_json, "arguments of a tool call");
  return Json::object({{"id", json_of(call.id)},
                       {"name", json_of(call.name)},
                       {"arguments", arguments.ok() ? std::move(arguments).value()
                                                    : json_of(call.arguments_json)}});
}
Json json_of(const std::vector<ToolCall>& calls) {
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    list.push(json_of(call));
  }
  return list;
}
Json json_of(const Usage& usage) { return object_of(usage); }
Json json_of(const ReuseReport& reuse) { return object_of(reuse); }
Json json_of(const Timing& timing) { return object_of(timing); }

// Sets a member. Each set_member leaves out a value that is missing.
template <class Value>
void set_member(Json& object, std::string_view name, const Value& value) {
  object.set(name, json_of(value));
}
void set_member(Json& object, std::string_view name, std::optional<FinishReason> reason) {
  if (reason) {
    object.set(name, json_of(*reason));
  }
}
void set_member(Json& object, std::string_view name, const std::vector<TokenLogprobs>& logprobs) {
  if (!logprobs.empty()) {
    object.set(name, json_of(logprobs));
  }
}

void set_member(Json& object, std::string_view name, const StoppedBy& by) {
  if (by.kind != StoppedBy::Kind::kNothing) {
    object.set(name, json_of(by));
  }
}
template <class Output>
void set_objects(Json& object, std::string_view name, const std::vector<Output>& outputs) {
  if (!outputs.empty()) {
    object.set(name, list_of(std::span<const Output>(outputs)));
  }
}
void set_member(Json& object, std::string_view name, const std::vector<ReusePart>& parts) {
  set_objects(object, name, parts);
}
void set_member(Json& object, std::string_view name, const std::vector<GenerationOutput>& outputs) {
  set_objects(object, name, outputs);
}

template <class Output>
Json list_of(std::span<const Output> outputs) {
  Json list = Json::array();
  for (const Output& output : outputs) {
    list.push(object_of(output));
  }
  return list;
}

template <class Output>
Json object_of(const Output& output) {
  Json object = Json::object();
  visit_members(output,
                [&](const char* name, const auto& value) { set_member(object, name, value); });
  return object;
}

// Writes what `make` gives.
template <class Make>
Result<std::string> written(Make make) try {
  return base::write_json(make());
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of an output");
}

template <class Output>
Result<std::string> written_object(const Output& output) {
  return written([&] { return object_of(output); });
}

}  // namespace

Result<std::string> to_json(const SamplingParams& params) { return engine::sampling_json(params); }
Result<std::string> to_json(const Usage& usage) { return written_object(usage); }
Result<std::string> to_json(const ReuseReport& reuse) { return written_object(reuse); }
Result<std::string> to_json(const Timing& timing) { return written_object(timing); }
Result<std::string> to_json(const GenerationOutput& output) { return written_object(output); }
Result<std::string> to_json(const ContextAnswer& answer) { return written_object(answer); }
Result<std::string> to_json(const Delta& delta) { return written_object(delta); }
Result<std::string> to_json(std::span<const ReusePart> parts) {
  return written([&] { return list_of(parts); });
}

}  // namespace quire
