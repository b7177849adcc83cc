// ChunkCore: what the parts of the chunk service share.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_setup.h"
#include "quire/chunks/hidden_states.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {
class TierService;
}  // namespace quire::tiers

namespace quire::chunks {

struct ChunkCore {
  // Returns why the registry has no chunk of this id and salt, or "" without a reason.
  using WhyNotFound = std::function<std::string(std::string_view id, std::string_view salt)>;
  // Borrows `on` and `in`.
  ChunkCore(engine::Engine& on, tiers::TierService& in, const ChunkCacheOptions& how,
            WhyNotFound why_not_found);

  // Returns the format of chunks, found out by the first call. A template that cannot be cut is no
  // error: registering text is, with the reason. Any thread.
  [[nodiscard]] const ChunkSetup& setup() const;
  // Returns whether some layer carries a state. Any thread, as for the next three.
  [[nodiscard]] bool has_states() const;
  // Returns the most blocks that the maps of a chunk of so many tokens take (chunk_maps.h).
  [[nodiscard]] std::int32_t map_blocks(std::int64_t tokens) const;
  [[nodiscard]] kv::ModelShape model_shape() const;
  // Returns kIncompatible, naming mode and layers, for a mode that layers with a state do not have.
  [[nodiscard]] Status check_mode(const CompositionSpec& spec) const;
  // Returns kUnsupported, naming what was asked for, where no pass runs some layers alone.
  [[nodiscard]] Status check_runs_some_layers(std::string_view what) const;
  // Returns whether a chunk has KV of its own, and not ids alone. Any thread.
  [[nodiscard]] bool needs_kv(const kv::NewChunk& chunk) const;
  [[nodiscard]] std::optional<TokenId> bos_token() const;

  // Returns the ledger. Engine thread, as for the next function.
  [[nodiscard]] kv::Ledger& ledger() const;
  // Returns the bytes that the pool lacks for so many blocks of each format. While a request runs
  // that may free some, they lack nothing: whoever needs them waits.
  [[nodiscard]] std::int64_t lacking(const kv::BlockCounts& blocks) const;
  // Lets the last tokens of chunks that nobody uses share blocks, and makes the copies. Returns the
  // number of blocks that became free. Engine thread.
  [[nodiscard]] Result<std::int64_t> coalesce();
  // Copies the last tokens of segments to where they can be read (kv::Coalescing::take_out), and
  // makes the copies. Engine thread.
  [[nodiscard]] Status make_readable(std::span<const kv::SegmentId> segments) const;
  using RequestEnd = std::shared_future<void>;
  // Returns the end of a request that is to be waited for before so many blocks are asked for
  // again. Blocks of the pool's own format need none: the scheduler waits for them. Those of other
  // formats are taken at once, and may be lacking while a request runs. Engine thread, as above.
  [[nodiscard]] std::optional<RequestEnd> end_to_await(kv::BlockCounts blocks) const;
  // Blocks until the request has ended. kCancelled where the call is interrupted. Any thread but
  // the engine's.
  [[nodiscard]] static Status await(const RequestEnd& end, const Interrupt& interrupted);
  // Adds the blocks of one variant of a chunk, in the chunk's format.
  void add_blocks(const kv::NewChunk& chunk, kv::BlockCounts& blocks) const;

  // Returns the format of a chunk for which `kv_dtype` is asked; "": the pool's own.
  // kInvalidArgument for a name that is none, kUnsupported where the pool has no such format. Any
  // thread, as for the next function.
  [[nodiscard]] Result<kv::FormatId> format_for(std::string_view kv_dtype) const;
  // Returns the kv_dtype of a format.
  [[nodiscard]] std::string kv_name(kv::FormatId format) const;

  engine::Engine& engine;
  tiers::TierService& tiers;
  const ChunkCacheOptions options;
  kv::ChunkRegistry registry;  // engine thread, as for the next
  HiddenStates hidden;

 private:
  // The reason why the pool lacks a format, to go on behind its name, and what else would help.
  struct Lack {
    const char* why;
    const char* way_out;
  };
  [[nodiscard]] Lack lack_of(std::string_view kv_dtype) const;
  mutable std::once_flag setup_once_;
  mutable ChunkSetup setup_;
};

}  // namespace quire::chunks
