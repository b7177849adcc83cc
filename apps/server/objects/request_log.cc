#include "objects/request_log.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "api/call.h"
#include "api/generation.h"
#include "api/render.h"
#include "quire/output.h"

namespace quire::server {
namespace {

constexpr std::size_t kMostRows = 200;

const char* state_name(RunState state) {
  switch (state) {
    case RunState::kQueued:
      return "queued";
    case RunState::kPrefill:
      return "prefill";
    case RunState::kDecode:
      return "decode";
    case RunState::kDone:
      break;
  }
  return "done";
}

json::value or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

}  // namespace

RequestRow row_of(const GenerationRun& run, const RunReport* report, std::string_view error) {
  const Call& call = run.call();
  RequestRow row{.id = run.id(),
                 .x_request_id = call.request->id,
                 .tenant = call.caller->tenant,
                 .endpoint = call.endpoint->pattern,
                 .state = report != nullptr || !error.empty() ? "done" : state_name(run.state())};
  for (const PromptPlan& prompt : run.plan().prompts) {
    row.prompt_tokens += prompt.tokens;
  }
  row.completion_tokens = run.generated();
  row.error = error;
  if (report != nullptr) {
    row.usage = report->usage;
    row.prompt_tokens = report->usage.prompt_tokens;
    row.completion_tokens = report->usage.completion_tokens;
    row.computed_tokens = report->computed_tokens;
    row.reuse = report->reuse;
    row.queue_ms = report->queue_ms;
    row.first_token_ms = report->first_token_ms;
    row.total_ms = report->total_ms;
    row.finish_reason = finish_word(run.choices().front().output.finish_reason);
    row.parts = run.choices().front().parts;
  }
  return row;
}

json::object row_json(const RequestRow& row, bool whole) {
  json::object object;
  object["id"] = row.id;
  object["x_request_id"] = row.x_request_id;
  object["tenant"] = row.tenant;
  object["endpoint"] = row.endpoint;
  object["state"] = row.state;
  object["prompt_tokens"] = row.prompt_tokens;
  const bool known = row.usage.has_value();
  object["cached_tokens"] = known ? json::value(row.usage->cached_tokens) : json::value(nullptr);
  object["computed_tokens"] = known ? json::value(row.computed_tokens) : json::value(nullptr);
  object["completion_tokens"] = row.completion_tokens;
  object["grade"] = known ? json::value(reuse_grade_name(row.reuse.grade)) : json::value(nullptr);
  json::array sources;
  for (const auto& [source, tokens] : row.reuse.sources) {
    json::object each;
    each["source"] = source;
    each["tokens"] = tokens;
    sources.push_back(std::move(each));
  }
  object["sources"] = std::move(sources);
  object["queue_ms"] = known ? json::value(row.queue_ms) : json::value(nullptr);
  object["first_token_ms"] = known ? json::value(row.first_token_ms) : json::value(nullptr);
  object["total_ms"] = known ? json::value(row.total_ms) : json::value(nullptr);
  object["finish_reason"] = or_null(row.finish_reason);
  object["error"] = or_null(row.error);
  if (whole) {
    object["parts"] = parts_json(row.parts);
  }
  return object;
}

void RequestLog::add(const GenerationRun& run, const RunReport* report, std::string_view error) {
  rows_.push_front(row_of(run, report, error));
  if (rows_.size() > kMostRows) {
    rows_.pop_back();
  }
}

const RequestRow* RequestLog::find(std::string_view id) const {
  const auto found = std::ranges::find(rows_, id, &RequestRow::id);
  return found == rows_.end() ? nullptr : &*found;
}

}  // namespace quire::server
