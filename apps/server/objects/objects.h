// Objects: chunks, sequences, sessions and requests as named things, and their endpoints.
#pragma once

#include <memory>
#include <span>

#include "api/router.h"

namespace quire::server {

struct Gauges;
struct Services;

// State behind the endpoints of this folder: sequences and their times, and so on.
class Objects {
 public:
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  virtual ~Objects() = default;

  // Sets the numbers of chunks, sequences and holds.
  virtual void fill(Gauges& gauges) const { (void)gauges; }
};

// Makes the state, once the engine is there.
[[nodiscard]] std::shared_ptr<Objects> make_objects(Services& services);
// Returns the endpoints of this folder.
[[nodiscard]] std::span<const Endpoint> object_endpoints();

}  // namespace quire::server
