#include "quire/kv_store/saved_states.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/kv_store/byte_codec.h"
#include "quire/kv_store/corrupt.h"
#include "quire/result.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {
namespace {

using tensor::StateForm;
using tensor::StatePart;

// Bounds that keep every sum of sizes within int64.
constexpr std::int64_t kMostPartBytes = std::int64_t{1} << 31;
constexpr std::size_t kMostParts = std::size_t{1} << 14;
constexpr std::size_t kMostStates = std::size_t{1} << 14;
constexpr std::uint32_t kStaysFlag = 1;
constexpr std::size_t kPartBytes = 4 + 4 + 8;
constexpr std::size_t kStateBytes = 4 + 4 + 8;

auto key_of(const StatePart& part) { return std::tuple(part.layer, part.form); }

Status check_part(const StatePart& part) {
  if (part.form != StateForm::kConvTail && part.form != StateForm::kDeltaMatrix &&
      part.form != StateForm::kScanMatrix) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a state has a part of form ", static_cast<std::uint32_t>(part.form),
                          ", which is unknown here")};
  }
  constexpr auto kNumber = static_cast<std::int64_t>(sizeof(float));
  if (part.layer < 0 || part.bytes < kNumber || part.bytes > kMostPartBytes ||
      part.bytes % kNumber != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the ", part_name(part), " has ", part.bytes, " bytes; a part has ",
                          kNumber, " to ", kMostPartBytes, ", in fp32")};
  }
  return {};
}

}  // namespace

std::int64_t SavedStates::bytes_of_one() const {
  return std::transform_reduce(parts.begin(), parts.end(), std::int64_t{0}, std::plus<>(),
                               [](const StatePart& part) { return part.bytes; });
}

bool same_states(const SavedStates& a, const SavedStates& b) {
  return a.at == b.at && parts_difference(a.parts, b.parts).empty();
}

std::string part_name(const StatePart& part) {
  return base::str_cat(tensor::state_form_name(part.form), " of layer ", part.layer);
}

Status check_states(const SavedStates& states, std::int64_t num_tokens) {
  if (states.at.empty() != states.parts.empty() || states.at.size() > kMostStates ||
      states.parts.size() > kMostParts) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(states.at.size(), " states of ", states.parts.size(),
                          " parts; a file has none of both, or at most ", kMostStates, " of ",
                          kMostParts)};
  }
  for (std::size_t i = 0; i < states.parts.size(); ++i) {
    QUIRE_TRY_STATUS(check_part(states.parts[i]));
    if (i > 0 && key_of(states.parts[i - 1]) >= key_of(states.parts[i])) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("the ", part_name(states.parts[i]), " is behind the ",
                            part_name(states.parts[i - 1]), "; parts ascend")};
    }
  }
  std::int32_t before = 0;
  for (const StateAt& state : states.at) {
    if (state.tokens <= before || (num_tokens > 0 && state.tokens > num_tokens)) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("a state behind ", state.tokens, " tokens follows one behind ", before,
                            " in a file of ", num_tokens)};
    }
    before = state.tokens;
  }
  return {};
}

std::string parts_difference(std::span<const StatePart> theirs, std::span<const StatePart> ours) {
  for (const StatePart& part : ours) {
    const auto same = std::ranges::find(theirs, key_of(part), key_of);
    if (same == theirs.end()) {
      const auto other = std::ranges::find_if(theirs, [&](const StatePart& their) {
        return their.layer == part.layer &&
               std::ranges::find(ours, key_of(their), key_of) == ours.end();
      });
      return other == theirs.end()
                 ? base::str_cat("it lacks the ", part_name(part))
                 : base::str_cat("its state is of another form: it has a ", part_name(*other),
                                 ", here it is a ", tensor::state_form_name(part.form));
    }
    if (same->bytes != part.bytes) {
      return base::str_cat("the ", part_name(part), " has ", same->bytes, " bytes, here it has ",
                           part.bytes);
    }
  }
  for (const StatePart& part : theirs) {
    if (std::ranges::find(ours, key_of(part), key_of) == ours.end()) {
      return base::str_cat("it has a ", part_name(part), ", which the model has not");
    }
  }
  return {};
}

bool all_finite(std::span<const std::byte> numbers) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t refused = 0;  // not a bool, which the compiler would test number by number
  for (std::size_t i = 0; i + sizeof(std::uint32_t) <= numbers.size(); i += sizeof(std::uint32_t)) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &numbers[i], sizeof(bits));
    refused |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return refused == 0;
}

Status check_finite(std::span<const StatePart> parts, std::span<const std::byte> state) {
  for (const StatePart& part : parts) {
    if (!all_finite(part_of(part, state))) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("the ", part_name(part),
                            " has a NaN or an infinity, so nothing can go "
                            "on from it; look at the model's weights")};
    }
  }
  return {};
}

std::span<const std::byte> part_of(const StatePart& part, std::span<const std::byte> state) {
  return state.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes));
}

std::span<std::byte> part_of(const StatePart& part, std::span<std::byte> state) {
  return state.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes));
}

std::size_t states_size(const SavedStates& states) {
  if (states.at.empty()) {
    return 0;
  }
  return 4 + 4 + kPartBytes * states.parts.size() +
         states.at.size() * (kStateBytes + 8 * states.parts.size());
}

void encode_states(const SavedStates& states, std::span<const StatePlace> places, ByteWriter& out) {
  QUIRE_CHECK(places.size() == states.at.size(), "each state of a file has a place");
  out.put(static_cast<std::uint32_t>(states.parts.size()));
  out.put(static_cast<std::uint32_t>(states.at.size()));
  for (const StatePart& part : states.parts) {
    out.put(part.layer);
    out.put(static_cast<std::uint32_t>(part.form));
    out.put(part.bytes);
  }
  for (std::size_t i = 0; i < states.at.size(); ++i) {
    out.put(states.at[i].tokens);
    out.put(states.at[i].stays ? kStaysFlag : std::uint32_t{0});
    out.put(places[i].offset);
  }
  for (const StatePlace& place : places) {
    std::ranges::for_each(place.checksums, [&](std::uint64_t sum) { out.put(sum); });
  }
}

Status parse_states(ByteReader& reader, SavedStates& states, std::vector<StatePlace>& places) {
  const auto num_parts = reader.get<std::uint32_t>();
  const auto num_states = reader.get<std::uint32_t>();
  const auto too_short = [] { return corrupt("the header ends before its last field"); };
  if (num_parts == 0 || num_states == 0) {
    return reader.failed() ? too_short()
                           : corrupt("it has no states, which would be version 1, 2 or 3");
  }
  if (num_parts > kMostParts || num_states > kMostStates || !reader.holds(num_parts, kPartBytes)) {
    return too_short();
  }
  for (std::uint32_t i = 0; i < num_parts; ++i) {
    StatePart part{.layer = reader.get<std::int32_t>()};
    part.form = static_cast<StateForm>(reader.get<std::uint32_t>());
    part.bytes = reader.get<std::int64_t>();
    states.parts.push_back(part);
  }
  if (!reader.holds(num_states, kStateBytes + 8 * std::size_t{num_parts})) {
    return too_short();
  }
  for (std::uint32_t i = 0; i < num_states; ++i) {
    StateAt& state = states.at.emplace_back(StateAt{.tokens = reader.get<std::int32_t>()});
    const auto flags = reader.get<std::uint32_t>();
    if (flags > kStaysFlag) {
      return corrupt(base::str_cat("a state has the flags ", flags, "; there is one, 1"));
    }
    state.stays = flags == kStaysFlag;
    places.push_back({.offset = reader.get<std::int64_t>()});
  }
  for (StatePlace& place : places) {
    if (!reader.get_all(num_parts, place.checksums)) {
      return too_short();
    }
  }
  return {};
}

}  // namespace quire::kv_store
