# Writes OUT with the commit of SOURCE, if it is another than OUT has: cmake -DSOURCE=... -DOUT=... -P
# write-commit.cmake. It is empty outside of a git checkout, and ends in "-dirty" if files differ from it.
find_package(Git QUIET)
set(commit "")
if(Git_FOUND AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(text "// The commit that this build is of (deploy/cmake/write-commit.cmake).\n#define CKV_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
