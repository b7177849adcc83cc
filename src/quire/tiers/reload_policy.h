// ReloadPolicy: decides whether saved KV is read back or computed again, whichever is faster. It
// compares the medians of the last five measurements in seconds per token, so that one slow read or
// step decides nothing. The KV is the same either way, to the bit.
//
// Thread rule: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "quire/engine/hooks.h"

namespace quire::tiers {

class ReloadPolicy final : public engine::StepListener {
 public:
  // Notes that reading or computing took `seconds`. Few tokens say nothing and are not counted.
  void note_read(std::int64_t tokens, double seconds);
  void note_computed(std::int64_t tokens, double seconds);
  void computed(const Step& step) override {
    if (step.alone) {
      note_computed(step.rows, step.forward_seconds);
    }
  }

  // Returns true unless both speeds are known (of at least three) and computing was faster. Then it
  // returns true now and then, so that reading is measured again.
  [[nodiscard]] bool reads_next();
  // Answers of reads_next() from now on, if nothing were measured meanwhile.
  class Forecast {
   public:
    [[nodiscard]] bool reads_next();

   private:
    friend class ReloadPolicy;
    Forecast(bool computing_is_faster, int computed_in_turn)
        : computing_is_faster_(computing_is_faster), computed_in_turn_(computed_in_turn) {}
    bool computing_is_faster_;
    int computed_in_turn_;
  };
  [[nodiscard]] Forecast forecast() const;

  struct Measured {  // seconds per token; nullopt: not known yet
    std::optional<double> read, computed;
    [[nodiscard]] bool computing_is_faster() const { return read && computed && *computed < *read; }
  };
  [[nodiscard]] Measured measured() const;
  // Says why saved KV is not read, for explain.
  [[nodiscard]] std::string why_not_read() const;

 private:
  class Median {
   public:
    void note(std::int64_t tokens, double seconds);
    [[nodiscard]] std::optional<double> value() const;

   private:
    std::array<double, 5> last_ = {};
    std::size_t count_ = 0;  // number of all noted measurements
  };

  mutable std::mutex mutex_;  // guards what follows
  Median read_, computed_;
  int computed_in_turn_ = 0;
};

}  // namespace quire::tiers
