// Byte-pair encoding joins characters (or bytes) pair by pair until no merge applies (Sennrich et
// al., 2016). The pair of the lowest rank comes first, and of equal ranks the leftmost. Also runs
// sentencepiece's BPE, whose merges and ranks follow from the scores of its tokens.
//
// Thread rule: see model.h; the memo of whole tokens is made of relaxed atomics.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/text/model.h"
#include "quire/text/vocabulary.h"

namespace quire::text {

struct BpeOptions {
  bool byte_level = false;         // pieces are raw bytes, tokens are spelled in the byte alphabet
  bool byte_fallback = false;      // unknown characters become <0xAB> tokens if all of them exist
  bool ignore_merges = false;      // a piece that is a token is that token, whatever the merges say
  bool keep_newline_runs = false;  // like ignore_merges, for pieces of newlines only
  bool fuse_unk = false;           // neighbouring unknown characters become one unknown token
  std::optional<TokenId> unk;      // token of unknown characters; without it they vanish
  std::string continuing_subword_prefix;  // prefix of every character but a piece's first
  std::string end_of_word_suffix;         // suffix of a piece's last character
};

// Spelled as the vocabulary spells; lower ranks merge first. The last of equal pairs counts.
struct BpeMerge {
  std::string left;
  std::string right;
  std::uint32_t rank = 0;
};

// Returns all pairs that join to a token, ranked by falling score: the rule of sentencepiece.
// Tokens for which `mergeable` is false take no part. A part may also be a single character without
// a token.
[[nodiscard]] std::vector<BpeMerge> merges_from_scores(const Vocabulary& vocabulary,
                                                       const std::vector<float>& scores,
                                                       const std::vector<bool>& mergeable);

class BpeModel final : public Model {
 public:
  // Creates a model, and copies the vocabulary. kInvalidArgument naming a merge whose parts or
  // result are not tokens, unless `lenient`. Then such parts become symbols that are written as
  // bytes when they remain.
  [[nodiscard]] static Result<std::unique_ptr<BpeModel>> create(const Vocabulary& vocabulary,
                                                                const BpeOptions& options,
                                                                const std::vector<BpeMerge>& merges,
                                                                bool lenient);

  void tokenize(std::string_view piece, ModelScratch& scratch,
                std::vector<TokenId>& out) const override;

  // Returns whether no merge joins another character with a following U+2581, so that text may be
  // cut there (make_metaspace_cut) without changing the ids.
  [[nodiscard]] bool never_merges_into_metaspace() const { return cuts_at_metaspace_; }

 private:
  struct Pair {
    std::uint64_t key = kNoPair;
    std::uint32_t rank = 0;
    std::int32_t result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  enum class Memo : std::uint8_t { kUnknown, kWhole, kParts };

  explicit BpeModel(BpeOptions options) : options_(std::move(options)) {}

  void add_tokens(const Vocabulary& vocabulary);
  Status add_merges(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges,
                    bool lenient);
  [[nodiscard]] std::int32_t symbol_of(const Vocabulary& vocabulary, std::string_view spelling,
                                       bool lenient);
  void set_pair(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t result);
  [[nodiscard]] const Pair* find_pair(std::int32_t left, std::int32_t right) const;

  void split_into_units(std::string_view piece, std::vector<std::int32_t>& units) const;
  void add_character(std::string_view spelling, std::vector<std::int32_t>& units,
                     std::optional<std::int32_t>& pending_unk) const;
  [[nodiscard]] std::int32_t character_symbol(std::string_view piece, std::size_t begin,
                                              std::size_t end) const;
  void merge_short(ModelScratch& scratch) const;
  void merge_long(ModelScratch& scratch) const;
  // Looks up the merge of a symbol with its next one; false when there is none.
  bool rank_symbol(ModelScratch& scratch, std::int32_t at) const;
  void emit(std::int32_t symbol, std::vector<TokenId>& out) const;

  BpeOptions options_;
  TokenId end_token_ = 0;      // symbols from here on are no tokens
  StringTable symbols_;        // by surface: raw bytes with byte_level, else the spelling
  ByteTokens byte_tokens_{};   // <0xAB>
  ByteTokens byte_symbols_{};  // with byte_level: symbol of each single byte
  std::vector<Pair> pairs_;    // open addressing, a power of two, at most half full
  bool cuts_at_metaspace_ = false;
  // For each token, whether the merges of its own spelling give it back. Decided at first use.
  std::unique_ptr<std::atomic<Memo>[]> memo_;
};

}  // namespace quire::text
