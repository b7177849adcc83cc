// The parts of a DecodeStream; for decode_*.cc only.
//
// Thread rule: one thread per stream.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "quire/base/work_meter.h"
#include "quire/text/spelling_decoder.h"

namespace quire::text {

// Runs one step. A token may arrive in fragments once a Fuse has run: only the first of them
// `starts_token`.
class DecodeStage {
 public:
  explicit DecodeStage(DecodeStage* next) : next_(next), meter_(&next->meter()) {}
  virtual ~DecodeStage() = default;
  DecodeStage(const DecodeStage&) = delete;
  DecodeStage& operator=(const DecodeStage&) = delete;

  virtual void push(std::string_view text, bool starts_token) = 0;
  // Passes on what was held back, and resets this stage and the ones behind it.
  virtual void flush() { next().flush(); }
  // Returns true if fragments of a token are as good as the token.
  [[nodiscard]] virtual bool takes_fragments() const { return false; }
  [[nodiscard]] base::WorkMeter& meter() const { return *meter_; }

 protected:
  explicit DecodeStage(base::WorkMeter& meter) : next_(nullptr), meter_(&meter) {}  // the last one
  [[nodiscard]] DecodeStage& next() const { return *next_; }

 private:
  DecodeStage* next_;
  base::WorkMeter* meter_;
};

[[nodiscard]] std::string replaced(std::string_view text, std::string_view what,
                                   std::string_view by, base::WorkMeter& meter);

// Makes the stage of a step that sees tokens as words. `step` and `next` are borrowed.
[[nodiscard]] std::unique_ptr<DecodeStage> make_stage(const decode::WordPiece& step,
                                                      DecodeStage* next);
[[nodiscard]] std::unique_ptr<DecodeStage> make_stage(const decode::Bpe& step, DecodeStage* next);
[[nodiscard]] std::unique_ptr<DecodeStage> make_stage(const decode::Ctc& step, DecodeStage* next);

}  // namespace quire::text
