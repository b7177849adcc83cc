// Random operations on sequences, their files, and prompts beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copies_oracle.h"
#include "quire/sequence.h"
#include "random_site.h"

namespace quire {

class RandomSequences {
 public:
  explicit RandomSequences(Site& site) : site_(site) {}

  [[nodiscard]] std::vector<Operation> operations();
  // Ids and grades; `with_logits`: of one of them too.
  void check(bool with_logits);
  void add_blocks(BlockSet& held) const;
  void clear();

  [[nodiscard]] bool has_room() const { return live_.size() < kMostLive; }
  void keep(Sequence sequence, Copy copy);

 private:
  static constexpr std::size_t kMostLive = 6;
  static constexpr std::size_t kMostMarks = 3;
  static constexpr std::size_t kMostFiles = 6;
  static constexpr std::int64_t kMostRuns = 12;  // of the KV of one sequence
  static constexpr int kMostEdits = 3;           // that are approximate, of one sequence
  static constexpr std::int64_t kMostTokens = 60;

  struct Saved {
    Mark mark;
    Copy copy;
    std::vector<std::int32_t> blocks;
  };
  struct Live {
    Sequence sequence;
    Copy copy;
    std::vector<Saved> marks;
  };

  bool create();
  bool fork();
  bool drop();
  bool append();
  bool generate();
  bool roll_back_to();
  bool edit();
  bool edit_approximately();
  bool checkpoint();
  bool roll_back();
  bool commit();
  bool compare();
  bool save();
  bool load(bool wait);
  bool prompt();
  bool infer_behind();
  void finish_reading();
  void expect_logits(Live& live);
  // The most blocks that a change of a sequence to so many tokens takes.
  [[nodiscard]] std::int64_t need(std::int64_t tokens) const {
    return site_.blocks_for(tokens) + 2;
  }

  Site& site_;
  std::vector<Live> live_;
  std::optional<Live> reading_;  // loaded a few operations ago; its KV may be on its way
  int reading_for_ = 0;          // operations
};

}  // namespace quire
