// Stop strings in text that arrives in pieces.
//
// Thread rule: one thread per object.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire::sampling {

// Passes text through up to the first place where a stop string begins, however the text is cut
// into deltas. A match is reported once no stop string that began before it can be completed.
// Invariants: text that was passed on holds no stop string that counts, and no beginning of one
// that later text could complete. After a stop nothing is passed on.
class StopChecker {
 public:
  struct TextDelta {
    std::string_view text;  // may be passed on; valid until the next call and as long as what
                            // was pushed
    bool stopped = false;   // a stop string was found; `text` ends before it
    std::size_t stop = 0;   // index of the stop string, where `stopped`
  };

  // Looks for `stops`. Precondition: no stop string is empty.
  explicit StopChecker(std::vector<std::string> stops);

  // Takes the next delta of text. Amortised O(bytes) per stop string. A stop string counts where it
  // ends in a delta that `counts`; it may begin before.
  [[nodiscard]] TextDelta push(std::string_view delta, bool counts = true);

  // Returns the text that was held back, up to a stop string, when no more will come. The object
  // starts afresh afterwards. Valid until the next call.
  [[nodiscard]] std::string_view flush();

 private:
  // A stop string with its Knuth-Morris-Pratt borders: how much of it the text so far ends with.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> borders;
    std::size_t matched = 0;
  };

  static constexpr std::size_t kNotFound = std::string::npos;

  static void advance(Pattern& pattern, char next);
  [[nodiscard]] std::size_t live_begin() const;
  [[nodiscard]] std::string_view release(std::size_t count);

  std::vector<Pattern> patterns_;
  std::string released_;           // text that the last call returned
  std::string held_;               // the end of the text so far that may begin a stop string
  std::size_t found_ = kNotFound;  // place where the first stop string in held_ begins
  std::size_t which_ = 0;          // index of that stop string
  bool stopped_ = false;
};

}  // namespace quire::sampling
