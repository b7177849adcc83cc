#include "quire/chunks/chunk_maps.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/segments.h"
#include "quire/kv/states.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/config.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::chunks {
namespace {

bool in_32_bits(engine::Engine& engine) {
  return engine.core().paged_pool.geometry().dtype == tensor::DType::kFloat32;
}

std::int64_t blocks_of(std::int64_t bytes, const tensor::KVGeometry& geometry) {
  return (bytes + geometry.block_bytes() - 1) / geometry.block_bytes();
}

}  // namespace

std::int32_t most_map_blocks(engine::Engine& engine, std::int64_t tokens) {
  const model::ModelConfig& config = engine.model_config();
  if (config.state_layers() == 0) {
    return 0;
  }
  return static_cast<std::int32_t>(blocks_of(
      model::StateMaps::most_bytes(config, static_cast<std::int32_t>(tokens), in_32_bits(engine)),
      engine.core().paged_pool.geometry()));
}

Result<std::optional<model::StateMaps>> make_maps(engine::Engine& engine, std::int64_t tokens) {
  std::optional<model::StateMaps> maps;
  const model::ModelConfig& config = engine.model_config();
  if (config.state_layers() == 0) {
    return maps;
  }
  if (engine.core().paged_pool.on_device()) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = base::str_cat(
                     "chunks of ", config.family,
                     " models map the states that their layers carry, which a GPU does not compute "
                     "yet; give their text as a prompt, or open the model on the CPU")};
  }
  try {
    maps.emplace(config, static_cast<std::int32_t>(tokens), in_32_bits(engine));
  } catch (const std::bad_alloc&) {
    return base::no_memory("the maps of a chunk");
  }
  return maps;
}

Status store_maps(engine::EngineCore& core, SeqId sequence, const model::StateMaps& maps) {
  const kv::HeldState state = core.ledger.points().present(sequence);
  std::vector<std::byte> room;
  QUIRE_TRY(const auto bytes, core.states.read(state.ref().index, room));
  QUIRE_TRY(std::vector<std::byte> packed, maps.pack(bytes));
  const tensor::KVGeometry& geometry = core.paged_pool.geometry();
  const std::int64_t blocks = blocks_of(std::ssize(packed), geometry);
  packed.resize(static_cast<std::size_t>(blocks * geometry.block_bytes()));
  return core.paged_pool.write_blocks(
      core.ledger.segments().trim_maps(sequence, static_cast<std::int32_t>(blocks)), packed);
}

}  // namespace quire::chunks
