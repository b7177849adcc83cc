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

// State behind the endpoints of this folder, such as sequences and their lifetimes.
// Threads: the loop's thread.
class Objects {
 public:
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  virtual ~Objects() = default;

  // Notes that the generations of a request are over. `report` is null if it failed or its client
  // left; `error` is then its code, such as "client_gone".
  virtual void run_ended(const GenerationRun& /*run*/, const RunReport* /*report*/,
                         std::string_view /*error*/) {}
  // Drops the state unused for longest, where a request does not fit. Returns false if nothing can
  // be dropped.
  [[nodiscard]] virtual bool make_room() { return false; }
  // Sets the number of sequences.
  virtual void fill(Gauges& gauges) const { (void)gauges; }
};

// Makes the state. Precondition: the engine is there.
[[nodiscard]] std::shared_ptr<Objects> make_objects(Services& services);
// Returns the endpoints of this folder.
[[nodiscard]] std::span<const Endpoint> object_endpoints();

}  // namespace quire::server
