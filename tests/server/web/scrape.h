// The metrics that a process exports to Prometheus, as one scrape sees them.

#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

namespace ckv::test {

// Returns all that `address`, 127.0.0.1:port, answers to a request; "" if there is no answer.
inline std::string HttpAnswer(const std::string& address, const std::string& method,
                              const std::string& path) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience = {20, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const std::string request =
      method + " " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
  std::string reply;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
      reply.append(bytes, static_cast<size_t>(got));
    }
  }
  close(fd);
  return reply;
}

// Returns the body of GET `path` of `address`. If there is none, fails the test and returns "".
inline std::string HttpGet(const std::string& address, const std::string& path) {
  const std::string reply = HttpAnswer(address, "GET", path);
  EXPECT_EQ(reply.substr(0, 12), "HTTP/1.1 200") << address << path;
  const size_t body = reply.find("\r\n\r\n");
  return body == std::string::npos ? "" : reply.substr(body + 4);
}

class Scrape {
 public:
  explicit Scrape(const std::string& address) : text_(HttpGet(address, "/metrics")) {
    std::istringstream lines(text_);
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line.rfind(' ');
      if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
      values_[line.substr(0, space)] = std::strtod(line.c_str() + space, nullptr);
    }
  }

  // Returns the value of a series, for example `ckv_holder_lanes{fabric="shm"}`. If it is absent,
  // returns NaN, which equals nothing.
  double operator[](const std::string& series) const {
    const auto found = values_.find(series);
    return found == values_.end() ? NAN : found->second;
  }
  const std::string& text() const { return text_; }

 private:
  const std::string text_;
  std::map<std::string, double> values_;
};

}  // namespace ckv::test
