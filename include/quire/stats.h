// Counters of an engine (docs/performance.md, Counters), its pressure and its scheduling decisions.
// Plain data that the caller owns.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

// Counters of an LLM's engine since it was opened, and what it holds now (LLM::engine_stats).
struct EngineStats {
  // KV blocks of the pool. `blocks_total` is the sum of the next three: free, known to the prefix
  // cache and used by nobody, used. Registered chunks use their blocks.
  std::int64_t blocks_total = 0, blocks_free = 0, blocks_cached = 0, blocks_in_use = 0;
  // Bytes of one block over all layers, of the blocks in use whatever their formats, and of the
  // rest of the budget: free or cached.
  std::int64_t block_bytes = 0, bytes_in_use = 0, bytes_free = 0;
  // Bytes of a block in layers with a window, where they are freed before the block, and those of
  // the bytes in use. 0: a block lives as a whole.
  std::int64_t window_block_bytes = 0, window_bytes_in_use = 0;
  // Cached blocks freed to make room, and those among them of sessions that were closed, were over
  // their time, or were expected back later.
  std::int64_t evictions = 0, evictions_closed = 0, evictions_expired = 0, evictions_later = 0;
  // Cached blocks copied elsewhere so that others lie side by side.
  std::int64_t blocks_moved = 0;
  // Blocks freed since chunks that rest share their last blocks.
  std::int64_t blocks_coalesced = 0;
  // States of layers that carry one: held by sequences, kept to go on from, and altogether. 0 for
  // models without such layers.
  std::int64_t states_in_use = 0, restore_points = 0, states_total = 0;
  // Restore points in host memory (LLMOptions::host_kv_budget_bytes), and their bytes with the KV
  // before them.
  std::int64_t host_restore_points = 0, host_kv_bytes = 0;
  // Restore points copied there since the pool gave them up, and how often a request has gone on
  // from one of them.
  std::int64_t points_to_host = 0, points_from_host = 0;
  // Known tokens that were computed again, since they stood behind the last restore point.
  std::int64_t tokens_replayed = 0;
  // Open sessions.
  std::int64_t sessions = 0;
  // Rows that went through the model: prompts, chunks and generated tokens.
  std::int64_t tokens_computed = 0;
  // Tokens of prompts that were not computed (Usage::cached_tokens), and generated tokens.
  std::int64_t tokens_reused = 0, tokens_generated = 0;
  // Forward passes, and those among them that a GPU began while the one before still ran.
  std::int64_t steps = 0, steps_ahead = 0;
  // Guessed tokens that steps have checked, those that were right, and these steps.
  std::int64_t tokens_drafted = 0, tokens_accepted = 0, speculative_steps = 0;
  // Branches of guesses that were right beside the likeliest tokens. Requests took over their
  // blocks, so no KV was copied.
  std::int64_t branches_linked = 0;
  // Times that a running request gave its blocks back and was computed again later.
  std::int64_t preemptions = 0;
  // Those among them whose KV was copied to host memory, and how often such KV came back.
  std::int64_t preemptions_swapped = 0, swaps_restored = 0;
  // Plans in which a request waited though it had room, as blocks were short (pressure_action).
  std::int64_t admissions_slowed = 0;
  // Requests that LLMOptions::max_waiting refused, and those that their deadline ended.
  std::int64_t requests_refused = 0, requests_expired = 0;
  // Level of pressure, 0 (low) to 3 (critical), and how often it changed.
  std::int64_t pressure_level = 0, pressure_changes = 0;
  // Requests that have ended, that run, and that wait. A chunk that is computed is a request, too.
  std::int64_t requests_finished = 0, requests_running = 0, requests_waiting = 0;
  // Work of attention in all layers. An entry is a run of KV with the rows that attend to it. Rows
  // are those of all entries. A read block is a visit of one KV head to a block.
  std::int64_t attention_entries = 0, attention_rows = 0, attention_blocks_read = 0;
  // Seconds in steps, and those among them in the model and choosing tokens.
  double step_seconds = 0, forward_seconds = 0, sample_seconds = 0;
  // Seconds to open the model, and bytes read for it.
  double load_seconds = 0;
  std::int64_t load_bytes = 0;
  // Bytes of packed weights, and those among them that are mapped from a file.
  std::int64_t weight_bytes = 0, mapped_weight_bytes = 0;
  // Measured seconds to read a token of saved KV, and to compute one. 0: not measured yet.
  double token_read_seconds = 0, token_compute_seconds = 0;
};

// Says how short blocks are (LLM::pressure).
enum class PressureLevel : std::uint8_t {
  // More than half of the blocks are free or cached, or nobody waits.
  kLow,
  // At most half of them are, and somebody waits.
  kMedium,
  // At most a fifth of them are, or the last step preempted somebody.
  kHigh,
  // Less than a twentieth.
  kCritical
};

// Returns "low", "medium", "high" or "critical". Static memory.
[[nodiscard]] QUIRE_API const char* pressure_level_name(PressureLevel level);
// Returns the action of a level, which comes beside those of the levels below it. "none". "slow
// admission": a request waits that would leave less than one block in 32 for those that run
// (EngineStats::admissions_slowed). "preempt": running requests may lose theirs (preemptions).
// "reject": those beyond LLMOptions::max_waiting are refused (requests_refused). Static memory.
[[nodiscard]] QUIRE_API const char* pressure_action(PressureLevel level);

// The pressure on an engine's blocks.
struct Pressure {
  PressureLevel level = PressureLevel::kLow;
  // Share of blocks that are free or cached.
  double blocks_free_share = 1;
  std::int64_t waiting = 0;
  // Preemptions in the last 60 seconds.
  std::int64_t preemptions_per_minute = 0;
};

// A request that lost its KV, and why: "blocks" where a running request needed them, "priority"
// where one of a higher priority did.
struct PreemptedRequest {
  RequestId request;
  std::string reason;
};

// One decision of the scheduler: a step, with what preceded it since the step before.
struct PlanDecision {
  // Number of the step, from 1 on.
  std::int64_t step = 0;
  std::vector<RequestId> admitted;
  std::vector<PreemptedRequest> preempted;
  // Tokens that the step computed.
  std::int64_t rows = 0;
  // Milliseconds of the step, up to delivery.
  double ms = 0;
};

// Each returns JSON with the names of the fields, which the caller owns. `level` is a name, and
// `action` is that of the level. A preempted request is a list of its id and the reason.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const Pressure& pressure);
[[nodiscard]] QUIRE_API Result<std::string> to_json(const PlanDecision& decision);

// Returns a JSON object with the names of the fields, in their order, which the caller owns. O(1).
// Any thread may call; nothing waits. Errors: kOutOfBlocks when the machine refuses memory.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const EngineStats& stats);

// Numbers for dashboards, as pairs of name and value, in the order of EngineStats.
using Stats = std::vector<std::pair<std::string, double>>;

}  // namespace quire
