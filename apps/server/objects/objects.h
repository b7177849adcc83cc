// Objects: chunks, sequences, sessions and requests as named things, and their endpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "api/router.h"

namespace quire::server {

class GenerationRun;
struct Gauges;
struct RunReport;
struct Services;

// State behind the endpoints of this folder: sequences and their times, and so on.
// Threads: the loop's thread.
class Objects {
 public:
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  virtual ~Objects() = default;

  // Notes that the generations of a request are over. `report` is null for one that failed or whose
  // client went; `error` is its code then, "client_gone" or the like.
  virtual void run_ended(const GenerationRun& /*run*/, const RunReport* /*report*/,
                         std::string_view /*error*/) {}
  // Drops what nobody has used for longest, where a request does not fit. Returns false where
  // nothing can go.
  [[nodiscard]] virtual bool make_room() { return false; }
  // Sets the number of sequences.
  virtual void fill(Gauges& gauges) const { (void)gauges; }
};

// Makes the state, once the engine is there.
[[nodiscard]] std::shared_ptr<Objects> make_objects(Services& services);
// Returns the endpoints of this folder.
[[nodiscard]] std::span<const Endpoint> object_endpoints();

}  // namespace quire::server
