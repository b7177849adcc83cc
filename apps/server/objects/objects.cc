#include "objects/objects.h"

#include <memory>
#include <span>

#include "api/router.h"

namespace quire::server {

std::shared_ptr<Objects> make_objects(Services& /*services*/) {
  return std::make_shared<Objects>();
}

std::span<const Endpoint> object_endpoints() { return {}; }

}  // namespace quire::server
