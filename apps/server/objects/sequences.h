// Helpers that the endpoints of sequences share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/json.h"
#include "objects/sequence_table.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/interrupt.h"
#include "quire/sequence.h"

namespace quire::server {

// Returns a sequence as JSON; its lifetime was renewed just now.
[[nodiscard]] json::object sequence_json(const SequenceEntry& entry);

// A sequence and the engine, for work on a worker.
struct SequenceWork {
  ChunkedLLM& llm;
  SequenceEntry& entry;
  const Interrupt& interrupted;
};
// Runs `work` on a worker with the sequence that the path names, and sends its reply. `computes`:
// admission counts it as a generation.
void with_sequence(Services& services, const CallPtr& call, bool computes,
                   std::function<Checked<Reply>(const SequenceWork& work)> work);

// A new sequence and its facts.
struct MadeSequence {
  Sequence sequence;
  std::string salt;
  std::vector<SequenceEntry::NamedMark> marks = {};
  std::optional<std::int64_t> tokens_computed = {};
};
void make_sequence_for(Services& services, const CallPtr& call, double ttl_seconds,
                       std::function<Checked<MadeSequence>(ChunkedLLM& llm)> make);

}  // namespace quire::server
