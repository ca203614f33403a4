# Builds the wheel of the Python package, py3-none-any, offline, from a copy of its sources:
#   cmake -DVERSION=0.1.0 -DSOURCE=client/bindings/python -DOUTPUT=FOLDER [-DPYTHON=FILE] -P wheel.cmake
# FOLDER gets ckv-VERSION-py3-none-any.whl, and source/, the copy.
if(NOT PYTHON)
  set(PYTHON ${CMAKE_CURRENT_LIST_DIR}/../../../deploy/python.sh)
endif()
file(REMOVE_RECURSE ${OUTPUT}/source)
file(GLOB files ${SOURCE}/ckv/*.py ${SOURCE}/ckv/py.typed)
file(COPY ${files} DESTINATION ${OUTPUT}/source/ckv)
configure_file(${SOURCE}/pyproject.toml.in ${OUTPUT}/source/pyproject.toml @ONLY)
execute_process(
  COMMAND ${PYTHON} -m pip --disable-pip-version-check wheel --quiet --no-index --no-deps --no-build-isolation
          --no-cache-dir --wheel-dir ${OUTPUT} ${OUTPUT}/source
  COMMAND_ERROR_IS_FATAL ANY)
