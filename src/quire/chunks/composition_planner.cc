#include "quire/chunks/composition_planner.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_library.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

std::vector<std::string> CompositionPlanner::chunk_ids(const CompositionSpec& spec) {
  std::vector<std::string> ids;
  if (!spec.system_chunk_id.empty()) {
    ids.push_back(spec.system_chunk_id);
  }
  ids.insert(ids.end(), spec.context_chunk_ids.begin(), spec.context_chunk_ids.end());
  ids.push_back(spec.query_chunk_id);
  return ids;
}

Status CompositionPlanner::check_positions(const kv::ResolvedComposition& composition) const {
  const auto end = [](const kv::Part& part) {
    return std::int64_t{part.position} + std::ssize(*part.chunk->tokens);
  };
  std::int64_t positions = end(composition.query);
  for (const kv::Part& part : composition.parts) {
    positions = std::max(positions, end(part));
  }
  const std::int64_t limit = core_.engine.model_config().context_length;
  if (positions <= limit) {
    return {};
  }
  return {
      ErrorCode::kOverflow,
      base::str_cat("the composition has ", positions, " positions, the model's context ",
                    core_.engine.model_config().context_text(), "; use fewer or shorter chunks")};
}

Status CompositionPlanner::check_layers(const CompositionSpec& spec,
                                        const kv::ResolvedComposition& composition) const {
  if (spec.mode != ReuseMode::kBlend || (!spec.blend.layers && !spec.blend.only_layer)) {
    return {};
  }
  const std::int32_t only = spec.blend.only_layer.value_or(0);
  const auto [first, last] =
      spec.blend.layers.value_or(LayerRange{.first = only, .last = only + 1});
  const std::int32_t layers = core_.engine.model_config().layers;
  if (first < 0 || first >= last || last > layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("recompute_layers is (", first, ", ", last,
                          "); give 0 <= first < last <= ", layers, ", the number of layers")};
  }
  QUIRE_TRY_STATUS(core_.check_runs_some_layers("recompute_layers"));
  if (core_.ledger().config().open_format()) {
    return {ErrorCode::kUnsupported,
            base::str_cat("recompute_layers stores rows of single layers, and KV in ",
                          base::quoted(core_.kv_name(kv::kOwnFormat)),
                          " is stored in whole blocks; use another kv_dtype")};
  }
  for (const kv::Part& part : composition.parts) {
    if (part.format != kv::kOwnFormat) {
      return {ErrorCode::kUnsupported,
              base::str_cat("recompute_layers stores KV in the pool's format, and chunk ",
                            part.chunk->id, " has ", base::quoted(core_.kv_name(part.format)),
                            "; register it without kv_dtype")};
    }
    if (spec.blend.layers && first > 0 && part.chunk->type == ChunkType::kContext &&
        part.chunk->keep_hidden != first) {
      return {
          ErrorCode::kIncompatible,
          base::str_cat("recompute_layers begins at layer ", first, ", and chunk ", part.chunk->id,
                        " has kept no hidden states of it; register it with "
                        "keep_hidden=",
                        first, ", or begin at layer 0")};
    }
  }
  return {};
}

std::int32_t CompositionPlanner::max_new_tokens(const ComposedRun& run,
                                                const kv::ResolvedComposition& composition) const {
  if (run.kind != engine::RequestKind::kGenerate) {
    return 0;
  }
  // The KV of the last sampled token is never needed, so one more token than positions fits.
  const std::int64_t room = core_.engine.model_config().context_length -
                            composition.query.position -
                            std::ssize(*composition.query.chunk->tokens) + std::int64_t{1};
  return static_cast<std::int32_t>(std::min<std::int64_t>(run.params->max_tokens, room));
}

Status CompositionPlanner::check_fits(const ComposedRun& run,
                                      const kv::ResolvedComposition& composition) const {
  const kv::Ledger& ledger = core_.ledger();
  const bool plain = composition.plain();
  const std::int64_t own =
      plain ? composition.num_tokens() : std::ssize(*composition.query.chunk->tokens);
  const std::int64_t more = std::max(max_new_tokens(run, composition), 1) - 1;
  std::int64_t needed =
      ledger.min_blocks(own + more, plain ? kv::BehindWindow::kFrees : kv::BehindWindow::kKeeps);
  std::int64_t bytes = 0;  // bytes of the chunks' KV
  for (const kv::Part& part : composition.parts) {
    bytes += plain ? 0 : core_.registry.room().bytes_for(*part.chunk);
  }
  const std::int64_t own_bytes = ledger.config().block_bytes(kv::kOwnFormat);
  needed += (bytes + own_bytes - 1) / own_bytes;
  const std::int64_t all = ledger.config().num_blocks;
  if (needed <= all) {
    return {};
  }
  const std::int64_t block_bytes = core_.engine.core().counters.block_bytes;
  return Error{
      .code = ErrorCode::kOverflow,
      .message = base::str_cat(
          "the composition needs ", needed, " blocks (", base::format_bytes(needed * block_bytes),
          ") with its answer, the pool has ", all, " (", base::format_bytes(all * block_bytes),
          "); use fewer or shorter chunks, lower max_tokens or raise kv_budget"),
      .needed_bytes = needed * block_bytes,
      .free_bytes = all * block_bytes};
}

Result<Compositions> CompositionPlanner::resolve(std::span<const ComposedRun> runs) {
  Compositions compositions;
  for (const ComposedRun& run : runs) {
    QUIRE_TRY_STATUS(core_.check_mode(*run.spec));
    QUIRE_TRY(auto composition,
              kv::resolve(core_.registry, whose(run), *run.spec, core_.model_shape()));
    QUIRE_TRY_STATUS(check_positions(composition));
    QUIRE_TRY_STATUS(check_layers(*run.spec, composition));
    QUIRE_TRY_STATUS(check_fits(run, composition));
    compositions.push_back(std::move(composition));
  }
  return compositions;
}

Result<std::string> CompositionPlanner::salt_of(const ComposedRun& run) const {
  const std::string& salt = run.spec->salt;
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", salt));
  QUIRE_TRY_STATUS(engine::SessionService::check_user(run.options));
  if (!salt.empty() && !run.options.salt.empty() && salt != run.options.salt) {
    return {ErrorCode::kInvalidArgument,
            "the composition is another salt's than the request; give that one, or none"};
  }
  return whose(run);
}

const std::string& CompositionPlanner::whose(const ComposedRun& run) const {
  return core_.engine.salt_of(run.spec->salt.empty() ? run.options.salt : run.spec->salt);
}

}  // namespace quire::chunks
