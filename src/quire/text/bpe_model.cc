#include "quire/text/bpe_model.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/byte_alphabet.h"
#include "quire/text/model.h"
#include "quire/text/utf8.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

constexpr std::size_t kShortUnits = 48;  // up to here a scan beats a heap (measured)

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::size_t pair_slot(std::uint64_t key) {
  const std::uint64_t mixed = key * 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>(mixed ^ mixed >> 32);
}

}  // namespace

Result<std::unique_ptr<BpeModel>> BpeModel::create(const Vocabulary& vocabulary,
                                                   const BpeOptions& options,
                                                   const std::vector<BpeMerge>& merges,
                                                   bool lenient) {
  std::unique_ptr<BpeModel> model(new BpeModel(options));
  model->add_tokens(vocabulary);
  QUIRE_TRY_STATUS(model->add_merges(vocabulary, merges, lenient));
  model->memo_ = std::make_unique<std::atomic<Memo>[]>(static_cast<std::size_t>(model->end_token_));
  return model;
}

void BpeModel::add_tokens(const Vocabulary& vocabulary) {
  end_token_ = vocabulary.end_id();
  byte_tokens_ = byte_tokens_of(vocabulary);
  for (TokenId id = 0; id < end_token_; ++id) {
    if (!vocabulary.is_ordinary(id)) {
      continue;
    }
    if (!options_.byte_level) {
      symbols_.insert(vocabulary.token(id), id);
    } else if (const auto bytes = bytes_of_spelling(vocabulary.token(id))) {
      symbols_.insert(*bytes, id);
    }
  }
}

std::int32_t BpeModel::symbol_of(const Vocabulary& vocabulary, std::string_view spelling,
                                 bool lenient) {
  if (const auto id = vocabulary.find(spelling)) {
    return *id;
  }
  if (!lenient) {
    return -1;
  }
  std::string surface(spelling);
  if (options_.byte_level) {
    auto bytes = bytes_of_spelling(spelling);
    if (!bytes) {
      return -1;
    }
    surface = std::move(*bytes);
  }
  return symbols_.insert(surface, std::max(symbols_.end_id(), end_token_));
}

Status BpeModel::add_merges(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges,
                            bool lenient) {
  std::size_t capacity = 16;
  while (capacity < 2 * merges.size()) {
    capacity *= 2;
  }
  pairs_.resize(capacity);
  cuts_at_metaspace_ =
      !options_.byte_level && !options_.ignore_merges && symbols_.find(kMetaspace) >= 0 &&
      options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  const std::size_t prefix = options_.continuing_subword_prefix.size();
  for (const BpeMerge& merge : merges) {
    const std::int32_t left = symbol_of(vocabulary, merge.left, lenient);
    const std::int32_t right = symbol_of(vocabulary, merge.right, lenient);
    const std::string joined =
        merge.left + (prefix <= merge.right.size() ? merge.right.substr(prefix) : "");
    const std::int32_t result = symbol_of(vocabulary, joined, lenient);
    if (left < 0 || right < 0 || result < 0) {
      if (lenient) {
        continue;  // a spelling outside the byte alphabet: no text can reach it
      }
      return {ErrorCode::kInvalidArgument,
              base::str_cat("merge ", merge.rank, " of ", base::quoted(merge.left), " and ",
                            base::quoted(merge.right), ": ",
                            base::quoted(left < 0    ? merge.left
                                         : right < 0 ? merge.right
                                                     : joined),
                            " is not in the vocabulary")};
    }
    if (!vocabulary.is_special(left) && !vocabulary.is_special(right) &&
        !vocabulary.is_special(result)) {
      set_pair(left, right, merge.rank, result);
      cuts_at_metaspace_ = cuts_at_metaspace_ && !(merge.right.starts_with(kMetaspace) &&
                                                   !merge.left.ends_with(kMetaspace));
    }
  }
  for (std::size_t byte = 0; byte < byte_symbols_.size(); ++byte) {
    const char c = static_cast<char>(byte);
    byte_symbols_[byte] = options_.byte_level ? symbols_.find({&c, 1}) : -1;
  }
  return {};
}

void BpeModel::set_pair(std::int32_t left, std::int32_t right, std::uint32_t rank,
                        std::int32_t result) {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = pairs_.size() - 1;
  std::size_t slot = pair_slot(key) & mask;
  while (pairs_[slot].key != kNoPair && pairs_[slot].key != key) {
    slot = (slot + 1) & mask;
  }
  pairs_[slot] = {.key = key, .rank = rank, .result = result};
}

const BpeModel::Pair* BpeModel::find_pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = pairs_.size() - 1;
  for (std::size_t slot = pair_slot(key) & mask;; slot = (slot + 1) & mask) {
    if (pairs_[slot].key == key) {
      return &pairs_[slot];
    }
    if (pairs_[slot].key == kNoPair) {
      return nullptr;
    }
  }
}

void BpeModel::tokenize(std::string_view piece, ModelScratch& scratch,
                        std::vector<TokenId>& out) const {
  const std::int32_t found = symbols_.find(piece);
  const TokenId whole = found < end_token_ ? found : -1;
  if (whole >= 0) {
    const Memo memo = memo_[static_cast<std::size_t>(whole)].load(std::memory_order_relaxed);
    const bool stays_whole =
        options_.ignore_merges ||
        (options_.keep_newline_runs && piece.find_first_not_of('\n') == std::string_view::npos);
    if (stays_whole || memo == Memo::kWhole) {
      out.push_back(whole);
      return;
    }
  }
  const std::size_t start = out.size();
  split_into_units(piece, scratch.units);
  if (!scratch.meter->step(static_cast<std::int64_t>(scratch.units.size()))) {
    return;
  }
  if (scratch.units.size() <= kShortUnits) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  for (const std::int32_t symbol : scratch.units) {
    emit(symbol, out);
  }
  if (whole >= 0 && !scratch.meter->failed()) {
    const bool same = out.size() == start + 1 && out.back() == whole;
    memo_[static_cast<std::size_t>(whole)].store(same ? Memo::kWhole : Memo::kParts,
                                                 std::memory_order_relaxed);
  }
}

void BpeModel::split_into_units(std::string_view piece, std::vector<std::int32_t>& units) const {
  units.clear();
  std::optional<std::int32_t> pending_unk;
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t length = options_.byte_level ? 1 : utf8_length(piece[begin]);
    const std::int32_t symbol = character_symbol(piece, begin, begin + length);
    if (symbol >= 0) {
      if (pending_unk) {
        units.push_back(*pending_unk);
        pending_unk.reset();
      }
      units.push_back(symbol);
    } else {
      add_character(piece.substr(begin, length), units, pending_unk);
    }
    begin += length;
  }
  if (pending_unk) {
    units.push_back(*pending_unk);
  }
}

std::int32_t BpeModel::character_symbol(std::string_view piece, std::size_t begin,
                                        std::size_t end) const {
  if (options_.byte_level) {
    return byte_symbols_[static_cast<unsigned char>(piece[begin])];
  }
  const std::string_view character = piece.substr(begin, end - begin);
  const bool prefixed = begin > 0 && !options_.continuing_subword_prefix.empty();
  const bool suffixed = end == piece.size() && !options_.end_of_word_suffix.empty();
  if (!prefixed && !suffixed) {
    return symbols_.find(character);
  }
  std::string spelling = prefixed ? options_.continuing_subword_prefix : std::string();
  spelling += character;
  if (suffixed) {
    spelling += options_.end_of_word_suffix;
  }
  return symbols_.find(spelling);
}

// Adds a character without a symbol. Order and fusing of unknown tokens are those of the reference.
void BpeModel::add_character(std::string_view spelling, std::vector<std::int32_t>& units,
                             std::optional<std::int32_t>& pending_unk) const {
  if (options_.byte_fallback) {
    const std::size_t start = units.size();
    for (const char byte : spelling) {
      const TokenId id = byte_tokens_[static_cast<unsigned char>(byte)];
      if (id < 0) {
        units.resize(start);
        break;
      }
      units.push_back(id);
    }
    if (units.size() > start) {
      return;
    }
  }
  if (options_.unk) {
    if (pending_unk && !options_.fuse_unk) {
      units.push_back(*pending_unk);
    }
    pending_unk = options_.unk;
  }
}

// Takes O(n^2) with tiny constants: ranks[i] is that of units i and i + 1.
void BpeModel::merge_short(ModelScratch& scratch) const {
  auto& units = scratch.units;
  auto& ranks = scratch.ranks;
  const auto rank_at = [&](std::size_t i) {
    const Pair* pair = i + 1 < units.size() ? find_pair(units[i], units[i + 1]) : nullptr;
    return pair != nullptr ? pair->rank : kNoRank;
  };
  ranks.clear();
  for (std::size_t i = 0; i + 1 < units.size(); ++i) {
    ranks.push_back(rank_at(i));
  }
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoRank) {
      return;
    }
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    units[at] = find_pair(units[at], units[at + 1])->result;
    units.erase(units.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(best);
    if (at < ranks.size()) {
      ranks[at] = rank_at(at);
    }
    if (at > 0) {
      ranks[at - 1] = rank_at(at - 1);
    }
  }
}

bool BpeModel::rank_symbol(ModelScratch& scratch, std::int32_t at) const {
  ModelScratch::Symbol& left = scratch.symbols[static_cast<std::size_t>(at)];
  const Pair* pair =
      left.next >= 0
          ? find_pair(left.symbol, scratch.symbols[static_cast<std::size_t>(left.next)].symbol)
          : nullptr;
  left.rank = pair != nullptr ? pair->rank : kNoRank;
  left.result = pair != nullptr ? pair->result : -1;
  return pair != nullptr;
}

// Takes O(n log n) over a linked list. The first merges to try are sorted once, those that arise
// lie in a heap. An entry whose rank is no longer that of its place is stale and skipped.
void BpeModel::merge_long(ModelScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& first = scratch.first_merges;
  auto& heap = scratch.merge_heap;
  const auto count = static_cast<std::int32_t>(scratch.units.size());
  const auto entry = [&](std::int32_t at) {
    return static_cast<std::uint64_t>(symbols[static_cast<std::size_t>(at)].rank) << 32 |
           static_cast<std::uint32_t>(at);
  };
  symbols.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    symbols.push_back({.symbol = scratch.units[static_cast<std::size_t>(i)],
                       .previous = i - 1,
                       .next = i + 1 < count ? i + 1 : -1});
  }
  first.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    if (rank_symbol(scratch, i)) {
      first.push_back(entry(i));
    }
  }
  std::sort(first.begin(), first.end());
  heap.clear();
  const std::greater<> later;
  const auto rank_again = [&](std::int32_t at) {
    if (at >= 0 && rank_symbol(scratch, at)) {
      heap.push_back(entry(at));
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  std::size_t next = 0;
  while ((next < first.size() || !heap.empty()) && scratch.meter->step(4)) {
    std::uint64_t top = 0;
    if (heap.empty() || (next < first.size() && first[next] < heap.front())) {
      top = first[next++];
    } else {
      top = heap.front();
      std::pop_heap(heap.begin(), heap.end(), later);
      heap.pop_back();
    }
    const auto at = static_cast<std::int32_t>(top & 0xFFFFFFFF);
    auto& left = symbols[static_cast<std::size_t>(at)];
    if (left.rank != top >> 32) {
      continue;
    }
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    left.symbol = left.result;
    left.next = right.next;
    right.rank = kNoRank;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = at;
    }
    rank_again(at);
    rank_again(left.previous);
  }
  scratch.units.clear();
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    scratch.units.push_back(symbols[static_cast<std::size_t>(i)].symbol);
  }
}

void BpeModel::emit(std::int32_t symbol, std::vector<TokenId>& out) const {
  if (symbol < end_token_) {
    out.push_back(symbol);
    return;
  }
  const ByteTokens& bytes = options_.byte_level ? byte_symbols_ : byte_tokens_;
  for (const char byte : symbols_.text(symbol)) {
    const TokenId id = bytes[static_cast<unsigned char>(byte)];
    if (id >= 0 && id < end_token_) {
      out.push_back(id);
    }
  }
}

std::vector<BpeMerge> merges_from_scores(const Vocabulary& vocabulary,
                                         const std::vector<float>& scores,
                                         const std::vector<bool>& mergeable) {
  std::map<float, std::uint32_t, std::greater<>> ranks;
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    if (mergeable[static_cast<std::size_t>(id)]) {
      ranks.emplace(scores[static_cast<std::size_t>(id)], 0);
    }
  }
  std::uint32_t next = 0;
  for (auto& [score, rank] : ranks) {
    rank = next++;
  }
  const auto is_part = [&](std::string_view part) {
    const auto id = vocabulary.find(part);
    return (id && mergeable[static_cast<std::size_t>(*id)]) || count_code_points(part) == 1;
  };
  std::vector<BpeMerge> merges;
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    if (!mergeable[static_cast<std::size_t>(id)]) {
      continue;
    }
    const std::string_view token = vocabulary.token(id);
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      if (!is_utf8_continuation(token[cut]) && is_part(token.substr(0, cut)) &&
          is_part(token.substr(cut))) {
        merges.push_back({.left = std::string(token.substr(0, cut)),
                          .right = std::string(token.substr(cut)),
                          .rank = ranks.at(scores[static_cast<std::size_t>(id)])});
      }
    }
  }
  return merges;
}

}  // namespace quire::text
