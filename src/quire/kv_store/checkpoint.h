// Checkpoint: what a store has of some sequences at one moment. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/kv_store/store_entry.h"

namespace quire::kv_store {

struct SavedSequence {
  std::string name;
  std::string metadata_json;
  std::string kernels;
  bool follows_from_tokens = true;
  struct RunShape {
    std::int64_t tokens = 0;
    std::int32_t start_position = 0;
  };
  std::vector<RunShape> runs;
  std::vector<ObjectRange> parts;  // its saved ranges, in order
  struct StateObject {
    std::int32_t tokens = 0;  // the state is behind so many tokens of the sequence
    std::string object;
  };
  std::vector<StateObject> states;  // ascending
};

struct Checkpoint {
  std::string name;
  std::int64_t number = 0;  // grows within a series
  StoreEntry entry;         // entry of kind kCheckpoint
  std::vector<SavedSequence> sequences;
  // Counts of save() and compact() alone:
  std::int64_t written_objects = 0;
  std::int64_t written_bytes = 0;
};

}  // namespace quire::kv_store
