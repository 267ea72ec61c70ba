// The service, as the rest of the page calls it. A failure is an ApiError that says what happened in a sentence.

export class ApiError extends Error {
  constructor(status, message, fields = []) {
    super(message);
    this.status = status;
    this.fields = fields; // names of those that are wrong
  }
}

const KEY = "secateurs-key";
export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

async function call(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. It may have been stopped, or the network is down.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && body === null) throw new ApiError(0, "The server’s answer was cut short.");
  if (!response.ok) {
    const fields = (body?.errors ?? []).map((wrong) => wrong.field);
    throw new ApiError(response.status, body?.detail ?? `The server answered with status ${response.status}.`, fields);
  }
  return body;
}

const at = (index, verb) => `/v1/indexes/${encodeURIComponent(index)}/${verb}`;

export const listIndexes = () => call("/v1/indexes");

export const listFields = (index) => call(at(index, "fields"));

export const search = (index, request, signal) =>
  call(at(index, "search"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });

export const explain = (index, settings, signal) =>
  call(`${at(index, "explain")}?${new URLSearchParams(settings)}`, { signal });

export const pruneCurve = (index, settings, signal) =>
  call(`${at(index, "prune-curve")}?${new URLSearchParams(settings)}`, { signal });
