// Narrowing: KV of a chunk that is there, stored once more in fewer bits.
//
// Converted KV is not what registering in that format computes: its rows saw the others as they
// were stored before. So a narrowed chunk has an id of its own (kv::narrowed_id).
//
// Thread rule: the engine thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "quire/chunks/chunk_core.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/result.h"

namespace quire::chunks {

// Returns the format to which a chunk is narrowed, or nothing where it has that one already or none
// is asked for. kInvalidArgument for an unknown format and one that is not narrower, kUnsupported
// for one that the pool has not, with the reason.
[[nodiscard]] Result<std::optional<kv::FormatId>> narrower_format(
    const ChunkCore& core, const kv::NewChunk& chunk, const std::optional<std::string>& kv_dtype);

// Refuses to compute the KV that a narrowed chunk was made with: the id names what narrowing gives.
// Its KV behind something else is computed like that of every chunk. kIncompatible, with the chunk.
[[nodiscard]] Status check_computable(const ChunkCore& core, const kv::Chunk& chunk,
                                      const kv::VariantKey& key);

// Registers `chunk`, which has the metadata of the chunk `id` and the wider format, in the format
// `to`: all KV that is there is converted. Returns the new chunk. The old one stays. An equal chunk
// that is there already, with its KV, is taken instead. Other chunks make way where blocks are
// lacking, but not for one more chunk, since the caller removes the old one. Fails with
// kUnsupported for KV that the format cannot hold, and with kOutOfBlocks where it has no room for
// all of it. Fails with kIncompatible where the KV is not there, and as ChunkRegistry::begin. A
// failure changes nothing, but that chunks may have made way.
[[nodiscard]] Result<const kv::Chunk*> narrow(ChunkCore& core, const std::string& id,
                                              kv::NewChunk chunk, kv::FormatId to);

}  // namespace quire::chunks
