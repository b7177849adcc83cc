// Tenants: the service that each tenant has had, for the policy `fair` (virtual token counter,
// Sheng et al., OSDI 2024).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace quire::sched {

class Tenants {
 public:
  // Notes a new request of a tenant and returns the tenant's index, which stays until the last of
  // its requests has left. A tenant without requests begins at the least service of those that have
  // some, if that is more than its own. Where none has, the tenant that left last counts. Changes
  // nothing where memory is refused.
  [[nodiscard]] std::int32_t enter(const std::string& name);
  // Notes that a request of the tenant has ended.
  void leave(std::int32_t tenant);
  void charge(std::int32_t tenant, double service) {
    service_[static_cast<std::size_t>(tenant)] += service;
  }
  // Returns the service of each tenant. Entries of tenants that were forgotten are unused.
  [[nodiscard]] std::span<const double> service() const { return service_; }

 private:
  [[nodiscard]] double least() const;
  void forget_some();

  std::unordered_map<std::string, std::int32_t> by_name_;
  std::vector<double> service_;         // [tenants]
  std::vector<std::int64_t> requests_;  // [tenants] that have not ended
  std::vector<std::int32_t> unused_;    // indices of forgotten tenants
  std::int64_t all_requests_ = 0;
  double last_left_ = 0;  // service of the tenant whose request was the last to end
};

}  // namespace quire::sched
