#include "proto/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace ckv {

spdlog::logger& Logger() {
  // Outside spdlog's registry: a program's own loggers, names and shutdown do not touch it.
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("ckv", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

}  // namespace ckv
