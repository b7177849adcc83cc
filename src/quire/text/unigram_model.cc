#include "quire/text/unigram_model.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/text/byte_trie.h"
#include "quire/text/model.h"
#include "quire/text/utf8.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

constexpr double kUnkPenalty = 10.0;  // sentencepiece's kUnkPenalty

ByteTrie trie_of(const Vocabulary& vocabulary, const std::vector<double>& scores) {
  std::vector<std::pair<std::string, std::int32_t>> entries;
  entries.reserve(vocabulary.size());
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    if (vocabulary.is_ordinary(id) &&
        scores[static_cast<std::size_t>(id)] > -std::numeric_limits<double>::infinity()) {
      entries.emplace_back(vocabulary.token(id), id);
    }
  }
  return ByteTrie(std::move(entries));
}

}  // namespace

UnigramModel::UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores,
                           double min_score, const UnigramOptions& options)
    : options_(options),
      scores_(std::move(scores)),
      unk_score_(min_score - kUnkPenalty),
      trie_(trie_of(vocabulary, scores_)),
      byte_tokens_(byte_tokens_of(vocabulary)) {}

bool UnigramModel::find_best_path(std::string_view piece, ModelScratch& scratch) const {
  auto& path = scratch.path;
  path.assign(piece.size() + 1, {});
  const auto offer = [&](std::size_t begin, std::size_t end, double score, TokenId id) {
    auto& node = path[end];
    const double total = path[begin].score + score;
    if (!node.reached || total > node.score) {
      node = {.score = total, .id = id, .begin = begin, .reached = true};
    }
  };
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t character_end = begin + utf8_length(piece[begin]);
    bool covers_character = false;
    std::uint32_t node = ByteTrie::root();
    std::size_t end = begin;
    while (end < piece.size()) {
      node = trie_.child(node, piece[end++]);
      if (node == ByteTrie::kNoNode) {
        break;
      }
      const TokenId id = trie_.value(node);
      if (id >= 0) {
        offer(begin, end, scores_[static_cast<std::size_t>(id)], id);
        covers_character = covers_character || end == character_end;
      }
    }
    if (!scratch.meter->step(static_cast<std::int64_t>((end - begin) / 4) + 1)) {
      return false;
    }
    if (!covers_character) {
      offer(begin, character_end, unk_score_, options_.unk);
    }
    begin = character_end;
  }
  return true;
}

void UnigramModel::tokenize(std::string_view piece, ModelScratch& scratch,
                            std::vector<TokenId>& out) const {
  if (!find_best_path(piece, scratch)) {
    return;
  }
  auto& spans = scratch.spans;
  spans.clear();
  for (std::size_t end = piece.size(); end > 0; end = scratch.path[end].begin) {
    spans.emplace_back(scratch.path[end].begin, end);
  }
  for (std::size_t i = spans.size(); i-- > 0;) {
    const TokenId id = scratch.path[spans[i].second].id;
    if (id != options_.unk) {
      out.push_back(id);
      continue;
    }
    const std::size_t begin = spans[i].first;  // neighbouring unknowns are one stretch
    while (i > 0 && scratch.path[spans[i - 1].second].id == options_.unk) {
      --i;
    }
    emit_unknown(piece.substr(begin, spans[i].second - begin), out);
  }
}

void UnigramModel::emit_unknown(std::string_view stretch, std::vector<TokenId>& out) const {
  const std::size_t start = out.size();
  for (const char byte : options_.byte_fallback ? stretch : std::string_view()) {
    const TokenId id = byte_tokens_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      out.resize(start);
      break;
    }
    out.push_back(id);
  }
  if (out.size() == start) {
    out.push_back(options_.unk);
  }
}

}  // namespace quire::text
