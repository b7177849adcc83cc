// Objects: chunks, sequences, sessions and requests as named things, and their endpoints.
#pragma once

#include <memory>
#include <span>

#include "api/router.h"

namespace quire::server {

struct Services;

// State behind the endpoints of this folder: sequences and their times, and so on.
class Objects {
 public:
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  virtual ~Objects() = default;
};

// Makes the state, once the engine is there.
[[nodiscard]] std::shared_ptr<Objects> make_objects(Services& services);
// Returns the endpoints of this folder.
[[nodiscard]] std::span<const Endpoint> object_endpoints();

}  // namespace quire::server
