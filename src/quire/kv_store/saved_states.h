// The states of a KV file: what the layers that carry one have behind some of its tokens. A state
// is of no use in part, so each part is named and has a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/result.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {

class ByteReader;
class ByteWriter;

// A state behind the first `tokens` tokens of a file, counted through its runs.
struct StateAt {
  std::int32_t tokens = 0;
  bool stays = false;  // a point that several histories share
  friend bool operator==(const StateAt&, const StateAt&) = default;
};

// The states of a file. All have the same parts.
struct SavedStates {
  std::vector<tensor::StatePart> parts;  // offsets are those in memory, which no file has
  std::vector<StateAt> at;               // ascending

  // Returns the bytes of one state in a file, where its parts follow each other. O(parts).
  [[nodiscard]] std::int64_t bytes_of_one() const;
};

// Returns whether a file with one of them is of use where the other one is.
[[nodiscard]] bool same_states(const SavedStates& a, const SavedStates& b);

// Returns kInvalidArgument that names the first thing that a file cannot hold. `num_tokens`: of the
// file's runs; 0 for a file of states alone.
[[nodiscard]] Status check_states(const SavedStates& states, std::int64_t num_tokens);

// Returns the first difference to the parts that a model's states have ("it lacks the convolution
// tail of layer 3"), or "".
[[nodiscard]] std::string parts_difference(std::span<const tensor::StatePart> theirs,
                                           std::span<const tensor::StatePart> ours);
// Returns what messages call a part.
[[nodiscard]] std::string part_name(const tensor::StatePart& part);

// Returns the bytes of a part within a state in memory.
[[nodiscard]] std::span<const std::byte> part_of(const tensor::StatePart& part,
                                                 std::span<const std::byte> state);
[[nodiscard]] std::span<std::byte> part_of(const tensor::StatePart& part,
                                           std::span<std::byte> state);

// Returns whether no number is a NaN or an infinity. The bytes are fp32 numbers.
[[nodiscard]] bool all_finite(std::span<const std::byte> numbers);
// Returns kInvalidArgument that names the first part of a state with another number.
[[nodiscard]] Status check_finite(std::span<const tensor::StatePart> parts,
                                  std::span<const std::byte> state);

// The place of a state in a file, and its checksums.
struct StatePlace {
  std::int64_t offset = 0;               // at a multiple of a page
  std::vector<std::uint64_t> checksums;  // [parts] XXH3-64
};

// Returns the bytes of the states' fields of a header.
[[nodiscard]] std::size_t states_size(const SavedStates& states);
// Appends these fields.
void encode_states(const SavedStates& states, std::span<const StatePlace> places, ByteWriter& out);
// Reads these fields. Returns kCorrupt for bytes that contradict themselves.
[[nodiscard]] Status parse_states(ByteReader& reader, SavedStates& states,
                                  std::vector<StatePlace>& places);

}  // namespace quire::kv_store
