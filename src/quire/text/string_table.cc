#include "quire/text/string_table.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "quire/base/check.h"

namespace quire::text {
namespace {

constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
  std::uint64_t hash = bytes.size() * kMultiplier + 1;
  const char* data = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t word = 0;
  while (left >= sizeof(word)) {
    std::memcpy(&word, data, sizeof(word));
    hash = fold(hash ^ word, kMultiplier);
    data += sizeof(word);
    left -= sizeof(word);
  }
  if (left > 0) {
    word = 0;
    std::memcpy(&word, data, left);
    hash = fold(hash ^ word, kMultiplier);
  }
  return fold(hash, 0xD6E8FEB86659FD93ULL);
}

std::int32_t StringTable::insert(std::string_view text, std::int32_t id) {
  QUIRE_CHECK(id >= 0, "ids are not negative");
  const std::int32_t known = find(text);
  if (known >= 0) {
    return known;
  }
  QUIRE_CHECK(!has(id), "an id has one string");
  QUIRE_CHECK(arena_.size() + text.size() < kNone, "more than 4 GiB of token text");
  if (2 * (size_ + 1) > slots_.size()) {
    grow();
  }
  if (id >= end_id()) {
    spans_.resize(static_cast<std::size_t>(id) + 1);
  }
  spans_[static_cast<std::size_t>(id)] = {.offset = static_cast<std::uint32_t>(arena_.size()),
                                          .length = static_cast<std::uint32_t>(text.size())};
  arena_ += text;
  const std::uint64_t hash = hash_bytes(text);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  while (slots_[slot].id >= 0) {
    slot = (slot + 1) & mask;
  }
  slots_[slot] = {.tag = tag_of(hash), .id = id};
  ++size_;
  return id;
}

std::int32_t StringTable::find(std::string_view text, std::uint64_t hash) const {
  if (slots_.empty()) {
    return -1;
  }
  const std::size_t mask = slots_.size() - 1;
  const std::uint32_t tag = tag_of(hash);
  for (std::size_t slot = hash & mask; slots_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (slots_[slot].tag == tag && this->text(slots_[slot].id) == text) {
      return slots_[slot].id;
    }
  }
  return -1;
}

bool StringTable::has(std::int32_t id) const {
  return id >= 0 && id < end_id() && spans_[static_cast<std::size_t>(id)].length != kNone;
}

std::string_view StringTable::text(std::int32_t id) const {
  const Span span = spans_[static_cast<std::size_t>(id)];
  return std::string_view(arena_).substr(span.offset, span.length);
}

void StringTable::grow() {
  slots_.assign(std::max<std::size_t>(16, slots_.size() * 2), Slot{});
  const std::size_t mask = slots_.size() - 1;
  for (std::int32_t id = 0; id < end_id(); ++id) {
    if (!has(id)) {
      continue;
    }
    const std::uint64_t hash = hash_bytes(text(id));
    std::size_t slot = hash & mask;
    while (slots_[slot].id >= 0) {
      slot = (slot + 1) & mask;
    }
    slots_[slot] = {.tag = tag_of(hash), .id = id};
  }
}

}  // namespace quire::text
