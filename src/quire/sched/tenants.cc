#include "quire/sched/tenants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace quire::sched {
namespace {

constexpr std::size_t kMostIdle = 4096;  // tenants beyond which those without requests may go

}  // namespace

double Tenants::least() const {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < service_.size(); ++i) {
    least = requests_[i] > 0 ? std::min(least, service_[i]) : least;
  }
  return least;
}

std::int32_t Tenants::enter(const std::string& name) {
  const auto known = by_name_.find(name);
  std::int32_t tenant = -1;
  if (known != by_name_.end()) {
    tenant = known->second;
  } else if (!unused_.empty()) {
    tenant = unused_.back();
    by_name_.emplace(name, tenant);
    unused_.pop_back();
  } else {
    tenant = static_cast<std::int32_t>(service_.size());
    service_.reserve(service_.size() + 1);
    requests_.reserve(requests_.size() + 1);
    unused_.reserve(service_.size() + 1);
    by_name_.emplace(name, tenant);
    service_.push_back(0);
    requests_.push_back(0);
  }
  const auto index = static_cast<std::size_t>(tenant);
  if (requests_[index] == 0) {
    service_[index] = std::max(service_[index], all_requests_ > 0 ? least() : last_left_);
  }
  ++requests_[index];
  ++all_requests_;
  return tenant;
}

void Tenants::leave(std::int32_t tenant) {
  const auto index = static_cast<std::size_t>(tenant);
  --requests_[index];
  --all_requests_;
  last_left_ = service_[index];
  if (by_name_.size() > kMostIdle) {
    forget_some();
  }
}

// Forgets tenants without requests that would begin where everybody may, and the lesser half of the
// others if that is not enough.
void Tenants::forget_some() {
  double bound = least();
  for (int half = 0; half < 2 && by_name_.size() > kMostIdle; ++half) {
    double most = 0;
    std::erase_if(by_name_, [&](const auto& entry) {
      const auto index = static_cast<std::size_t>(entry.second);
      if (requests_[index] > 0) {
        return false;
      }
      most = std::max(most, service_[index]);
      if (service_[index] > bound) {
        return false;
      }
      service_[index] = 0;
      unused_.push_back(entry.second);
      return true;
    });
    bound += (most - bound) / 2;
  }
}

}  // namespace quire::sched
