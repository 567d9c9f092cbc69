// A click on a heading sorts by that column, another one the other way round.
document.querySelectorAll('table.cards thead th').forEach(function (head) {
  head.tabIndex = 0;
  head.className = 'sorts';
  function sort() {
    var body = head.closest('table').tBodies[0];
    var column = head.cellIndex;
    var up = head.getAttribute('aria-sort') !== 'ascending';
    function key(row) {
      var cell = row.cells[column];
      var by = cell.querySelector('[data-by]');
      var text = by ? by.dataset.by : cell.textContent;
      var number = parseFloat(text.replace(/,/g, ''));
      return { text: text, number: Number.isFinite(number) ? number : Infinity };
    }
    var rows = Array.from(body.rows).map(function (row) { return { row: row, key: key(row) }; });
    rows.sort(function (a, b) {
      var by = a.key.number === b.key.number
        ? a.key.text.localeCompare(b.key.text)
        : a.key.number > b.key.number ? 1 : -1;
      return up ? by : -by;
    });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
    head.parentNode.querySelectorAll('th').forEach(function (th) { th.removeAttribute('aria-sort'); });
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  }
  head.addEventListener('click', sort);
  head.addEventListener('keydown', function (event) { if (event.key === 'Enter') sort(); });
});
