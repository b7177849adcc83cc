#include "quire/engine/stored_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "quire/engine/active_request.h"
#include "quire/engine/running_step.h"
#include "quire/engine/step_state.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::engine {
namespace {

// Returns the first row of a run, among the rows of its step.
std::size_t first_row(const RunningStep& running, std::size_t index) {
  return std::accumulate(running.runs.begin(),
                         running.runs.begin() + static_cast<std::ptrdiff_t>(index), std::size_t{0},
                         [](std::size_t sum, const sched::ScheduledRun& run) {
                           return sum + static_cast<std::size_t>(run.count);
                         });
}

std::span<const std::uint8_t>::iterator first_refused(std::span<const std::uint8_t> rows) {
  return std::ranges::find_if(rows, [](std::uint8_t why) { return why != 0; });
}

}  // namespace

void tell_stored(Step& step, const sched::ScheduledRun& run, std::size_t index) {
  const auto& observer = step.now.requests[index]->request().observer;
  if (step.now.kv_errors.empty() || observer == nullptr || !observer->measures_kv()) {
    return;
  }
  kernels::KVErrorSums sums;
  const auto rows = std::span(step.now.kv_errors)
                        .subspan(first_row(step.now, index), static_cast<std::size_t>(run.count));
  for (const kernels::KVErrorSums& row : rows) {
    sums.add(row);
  }
  observer->stored(sums);
}

Status check_stored(Step& step, const sched::ScheduledRun& run, std::size_t index) {
  const std::span<const std::uint8_t> refused = step.core.decoder().last_refused();
  if (refused.empty()) {
    return {};
  }
  const auto rows =
      refused.subspan(first_row(step.now, index), static_cast<std::size_t>(run.count));
  const auto found = first_refused(rows);
  if (found == rows.end()) {
    return {};
  }
  const std::vector<kv::RunView> parts = step.core.ledger.sequences().runs(run.sequence);
  std::int64_t token = run.first + (found - rows.begin()) - (*found - 1);
  if (step.now.requests[index]->request().kind != RequestKind::kPrefill) {
    for (const kv::RunView& before : std::span(parts).first(parts.size() - 1)) {
      token += before.num_tokens;  // a chunk alone counts its tokens from its own first one
    }
  }
  const tensor::KVGeometry& geometry = step.core.paged_pool.geometry(parts.back().format);
  return model::kv_refused(token, geometry.format, geometry.dtype);
}

std::int32_t usable_rows(Step& step, std::int32_t first_row, std::int32_t count) {
  const std::span<const std::uint8_t> refused = step.core.decoder().last_refused();
  if (refused.empty() || count == 0) {
    return count;
  }
  const auto rows =
      refused.subspan(static_cast<std::size_t>(first_row), static_cast<std::size_t>(count));
  return static_cast<std::int32_t>(first_refused(rows) - rows.begin());
}

std::int32_t usable_assumed_rows(Step& step, const sched::ScheduledRun& run, std::size_t index) {
  const auto first = static_cast<std::int32_t>(first_row(step.now, index));
  return usable_rows(step, first + run.count - run.assumed, run.assumed);
}

bool measures_kv(const Step& step, const RunningStep& running) {
  const bool codes = step.core.bundle.kv_format != tensor::KVFormat::kPlain;
  return (codes || step.core.num_formats() > 1) &&
         std::ranges::any_of(running.requests, [](const ActiveRequest* active) {
           return active->request().observer != nullptr &&
                  active->request().observer->measures_kv();
         });
}

}  // namespace quire::engine
