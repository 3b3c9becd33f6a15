// Runs all registered native tests, or those whose name or file contains the first argument.
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  const char* filter = argc > 1 ? argv[1] : "";
  int passed = 0, failed = 0;
  for (const check::Test& test : check::tests()) {
    if (test.name.find(filter) == std::string::npos && std::strstr(test.file, filter) == nullptr) continue;
    const int before = check::failures();
    try {
      test.body();
    } catch (const check::Abort&) {
    } catch (const std::exception& error) {
      check::fail(test.file, 0, "\"" + test.name + "\" threw: " + error.what());
    }
    const bool ok = check::failures() == before;
    (ok ? passed : failed)++;
    if (!ok) std::fprintf(stderr, "FAILED: %s (%s)\n", test.name.c_str(), test.file);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
