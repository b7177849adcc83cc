// RequestLog: the last requests that have ended, for /v1/requests.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/json.h"
#include "quire/output.h"

namespace quire::server {

class GenerationRun;
struct RunReport;

// A request that runs or has ended. Plain data.
struct RequestRow {
  std::string id;
  std::string x_request_id;
  std::string tenant;
  std::string endpoint;
  // "queued", "prefill", "decode" or "done".
  const char* state = "done";
  // Counts and times of a request that has ended well.
  std::optional<Usage> usage;
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t computed_tokens = 0;
  ReuseReport reuse;
  double queue_ms = 0;
  double first_token_ms = 0;
  double total_ms = 0;
  // "stop" or "length"; "" if `error` has a code.
  std::string finish_reason;
  std::string error;
  std::vector<ReusePart> parts;
};

// Returns a row for a run, which may still be under way.
[[nodiscard]] RequestRow row_of(const GenerationRun& run, const RunReport* report,
                                std::string_view error);
// Returns a row as JSON, with its parts where `whole` is true.
[[nodiscard]] json::object row_json(const RequestRow& row, bool whole);

// Keeps the last 200 rows. Threads: the loop's thread.
class RequestLog {
 public:
  void add(const GenerationRun& run, const RunReport* report, std::string_view error);
  // Returns the rows, newest first.
  [[nodiscard]] const std::deque<RequestRow>& rows() const { return rows_; }
  [[nodiscard]] const RequestRow* find(std::string_view id) const;

 private:
  std::deque<RequestRow> rows_;
};

}  // namespace quire::server
