#include "quire/engine/host_tier.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/engine/engine_core.h"
#include "quire/kv/ledger.h"
#include "quire/kv/point_keeper.h"
#include "quire/kv/restore_points.h"
#include "quire/kv_store/host_points.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Copies bytes, of which there are equally many.
Status copied(std::span<const std::byte> from, std::span<std::byte> to) {
  std::ranges::copy(from, to.begin());
  return {};
}

bool keep(EngineCore& core, const kv::LosingPoint& point) {
  return core.host_points->keep(point.tokens, point.salt,
                                {.read_block =
                                     [&](std::size_t block, std::span<std::byte> to) {
                                       return core.paged_pool.read_blocks(
                                           point.blocks.subspan(block, 1), to);
                                     },
                                 .read_tail =
                                     [&](std::span<std::byte> to) {
                                       return copied(core.states.block_beside(point.state), to);
                                     },
                                 .read_state = [&](std::span<std::byte> to) -> Status {
                                   std::vector<std::byte> room;  // stays empty in host memory
                                   QUIRE_TRY(const auto state, core.states.read(point.state, room));
                                   return copied(state, to);
                                 }});
}

}  // namespace

Status open_host_points(EngineCore& core, std::int64_t budget_bytes) {
  if (budget_bytes == 0) {
    return {};
  }
  if (!core.ledger.points().exist()) {
    return {ErrorCode::kUnsupported,
            base::str_cat("host_kv_budget of ", base::format_bytes(budget_bytes),
                          " is for restore points of models whose layers carry a state; this one "
                          "has none; leave it out, or raise kv_budget")};
  }
  if (core.paged_pool.on_device()) {
    return {ErrorCode::kUnsupported,
            base::str_cat("host_kv_budget of ", base::format_bytes(budget_bytes),
                          " keeps restore points of a CPU; on a GPU leave it out")};
  }
  core.host_points = std::make_unique<kv_store::HostPoints>(
      kv_store::HostPoints::Sizes{
          .budget_bytes = budget_bytes,
          .block_bytes = core.paged_pool.geometry().block_bytes(),
          .state_bytes = core.decoder().config().state_geometry().state_bytes,
          .block_tokens = core.ledger.config().block_tokens},
      [&core](std::size_t bytes) { return core.paged_pool.host_buffer(bytes); });
  core.ledger.points().set_keeper(
      {.keep = [&core](const kv::LosingPoint& point) { return keep(core, point); },
       .forget = [&core] { core.host_points->clear(); }});
  return {};
}

std::int32_t host_prefix(const EngineCore& core, std::span<const TokenId> tokens,
                         std::string_view salt) {
  return core.host_points == nullptr || tokens.empty()
             ? 0
             : core.host_points->find(tokens.first(tokens.size() - 1), salt);
}

}  // namespace quire::engine
