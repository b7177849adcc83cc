// Stop strings on streamed text: nothing is shown that may be the beginning of one.
//
// Thread rule: one thread per object.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::sampling {

class StopChecker {
 public:
  // `stops`: not empty strings.
  explicit StopChecker(std::vector<std::string> stops);

  struct Piece {
    std::string text;      // certain to stand before any stop string
    bool stopped = false;  // a stop string was found; text ends before it, nothing may follow
  };
  // Pieces joined equal the whole text up to its earliest stop string, however it was split. Cost:
  // O(number of stops * (text + longest stop)).
  [[nodiscard]] Piece push(std::string_view text);
  // What was held back because a stop string might have begun in it.
  [[nodiscard]] std::string flush();

 private:
  [[nodiscard]] std::size_t possible_start() const;

  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace quire::sampling
